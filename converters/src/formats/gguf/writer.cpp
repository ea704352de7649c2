// One file whose tensors have the names of the catalog. Programs of llama.cpp look for names of
// their own and for the model's parameters and tokenizer in the metadata; those are written only
// when they come from a GGUF file.
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"

#include "core/embedded_catalog.hpp"
#include "core/file_records.hpp"
#include "core/idle_sink.hpp"
#include "core/one_file_sink.hpp"
#include "formats/gguf/header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_set>

namespace unishard::converters {
namespace {

constexpr const char* kUnknown = "unknown";

/// Returns what the model is called in a config.json of Hugging Face, for example "llama".
std::string model_type(std::string_view hf_config) {
  const Json config = Json::parse(hf_config, nullptr, false);
  const auto found = config.is_object() ? config.find("model_type") : config.end();
  const bool is_known = config.is_object() && found != config.end() && found->is_string();
  return is_known ? found->get<std::string>() : kUnknown;
}

/// Returns the number by which llama.cpp names the type of most bytes.
std::optional<std::uint32_t> file_type(const Catalog& catalog) {
  constexpr std::array<std::pair<DType, std::uint32_t>, 3> kFileTypes = {
      {{DType::Float32, 0}, {DType::Float16, 1}, {DType::BFloat16, 32}}};
  std::map<DType, std::uint64_t> bytes;
  for (const TensorInfo& tensor : catalog.tensors) bytes[tensor.dtype] += tensor.bytes();
  if (bytes.empty()) return std::nullopt;
  const DType most =
      std::ranges::max_element(bytes, {}, [](const auto& row) { return row.second; })->first;
  const auto* const found =
      std::ranges::find(kFileTypes, most, [](const auto& row) { return row.first; });
  return found == kFileTypes.end() ? std::nullopt : std::optional(found->second);
}

/// The architecture comes first, as all writers do it.
Json complete_metadata(const Json& kept, const Catalog& catalog, std::string_view hf_config) {
  Json metadata = {{std::string(gguf::kArchitectureKey), {"string", model_type(hf_config)}}};
  for (const auto& [key, value] : kept.items()) metadata[key] = value;
  metadata.erase(std::string(gguf::kFileTypeKey));
  if (const auto type = file_type(catalog))
    metadata[std::string(gguf::kFileTypeKey)] = {"uint32", *type};
  return metadata;
}

gguf::Header make_header(const Catalog& catalog, std::string_view hf_config) {
  const std::vector<std::string> paths = flat_paths(catalog, "");
  gguf::Header header;
  Catalog described = catalog;
  Json kept = take_file_record(described.producer, kGgufMetadata);
  if (!kept.is_object()) kept = Json::object();
  if (!is_bare_model(described)) header.catalog_text = catalog_text(described, paths);
  header.metadata = complete_metadata(kept, catalog, hf_config);
  std::unordered_set<std::string_view> names;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (!names.insert(paths[i]).second) {
      raise(ErrorCode::InvalidArgument,
            fmt::format("a GGUF file holds one tensor of a name, and two tensors would be {}",
                        unishard::quote(paths[i])));
    }
    header.tensors.push_back({paths[i], catalog.tensors[i].dtype, catalog.tensors[i].shape});
  }
  return header;
}

}  // namespace

std::unique_ptr<Sink> make_gguf_sink(Storage& storage, const Path& output, Catalog catalog,
                                     std::string_view hf_config, const WorkSplit& share) {
  if (share.rank != 0) return std::make_unique<IdleSink>();
  gguf::Header header = make_header(catalog, hf_config);
  const gguf::Draft draft = gguf::encode_header(header);
  const auto begin = [&](File& file) {
    file.reserve(draft.file_bytes);
    file.write_at(0, std::as_bytes(std::span(draft.bytes)));
    std::vector<std::uint64_t> offsets;
    offsets.reserve(header.tensors.size());
    for (const gguf::TensorEntry& tensor : header.tensors) offsets.push_back(tensor.offset);
    return offsets;
  };
  return std::make_unique<OneFileSink>(storage, output, std::move(catalog), begin, draft.notes);
}

}  // namespace unishard::converters
