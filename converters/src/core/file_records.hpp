#pragma once
// What a catalog records of the files that it was read from, in Catalog::producer. Converters of
// other formats keep these records, so that files come back as they were.
#include "unishard/format/catalog.hpp"
#include "unishard/format/json.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace unishard::converters {

/// The places of the model and of the optimizer in a torch.save file.
inline constexpr std::string_view kTorchArrangement = "torch_arrangement";
/// Key in the arrangement: the file's object around the tensors, as one JSON text.
inline constexpr std::string_view kTorchObject = "file";
/// The keys, paths and objects of a DCP folder, as one JSON text.
inline constexpr std::string_view kDcpFolder = "dcp_folder";
/// How the names of an adapter's file, which held the model, became those of the catalog.
inline constexpr std::string_view kAdapterNames = "adapter_names";
/// Modules that torch.compile had wrapped, which the names in the file tell: {library: list}.
inline constexpr std::string_view kCompiledModules = "compiled_modules";
/// The names of other adapters beside an adapter of which it is not known that the optimizer has
/// trained it.
inline constexpr std::string_view kOtherAdapters = "other_adapters";
/// True for a run of DeepSpeed that saves no frozen parameters: those that are there have a second
/// name, which it does save, and are stored under that.
inline constexpr std::string_view kSavesNoFrozen = "saves_no_frozen";

/// The `__metadata__` of a safetensors file, and the keys of a GGUF file as {key: [type, value]}.
inline constexpr std::string_view kSafetensorsMetadata = "metadata";
inline constexpr std::string_view kGgufMetadata = "gguf";

inline constexpr std::array kFileRecords = {kTorchArrangement, kDcpFolder,     kAdapterNames,
                                            kCompiledModules,  kOtherAdapters, kSavesNoFrozen};

/// Limits of a record that is one JSON text. A value may be nested 200 levels deep, and a level of
/// a dict with pairs takes three of JSON.
inline constexpr JsonLimits kRecordLimits = {
    .bytes = std::uint64_t{64} << 20, .depth = 1024, .keys_per_object = ~std::uint64_t{0}};

/// Returns a digest of what a record repeats of a catalog beside the tensors: groups, client state
/// and step.
std::string digest_of_values(const Catalog& catalog);

/// Returns a record of `producer`; null without it.
inline Json file_record(const Json& producer, std::string_view key) {
  const auto found = producer.is_object() ? producer.find(std::string(key)) : producer.end();
  return found == producer.end() ? Json() : *found;
}

/// Removes a record from `producer` and returns it; null without it. An empty producer becomes
/// null.
inline Json take_file_record(Json& producer, std::string_view key) {
  if (!producer.is_object()) return {};
  Json record = file_record(producer, key);
  producer.erase(std::string(key));
  if (producer.empty()) producer = nullptr;
  return record;
}

/// Adds the records in `from` to the object `to`.
inline void copy_file_records(const Json& from, Json& to) {
  for (const std::string_view key : kFileRecords) {
    if (Json record = file_record(from, key); !record.is_null())
      to[std::string(key)] = std::move(record);
  }
}

}  // namespace unishard::converters
