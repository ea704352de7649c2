#include "workflows/dequantized_input.hpp"

#include "unishard/format/error.hpp"

#include "workflows/model_config.hpp"
#include "workflows/run_files.hpp"
#include "workflows/side_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace unishard::tools {
namespace {

constexpr const char* kConfigFile = "config.json";
constexpr const char* kModelOptFile = "hf_quant_config.json";
/// compressed-tensors used the second name at first.
constexpr std::array kKeys = {"quantization_config", "compression_config"};

bool is_part(const std::string& key, const Json& value) {
  return value.is_object() && key.ends_with("_config") && std::ranges::count(kKeys, key) == 0;
}

/// Looks in the model's configuration, then in those of its parts (text_config).
/// Complexity: linear, because strict JSON bounds the depth.
Json find_quantization(const Json& config) {
  if (!config.is_object()) return {};
  for (const char* key : kKeys) {
    if (const auto found = config.find(key); found != config.end() && found->is_object())
      return *found;
  }
  for (const auto& [key, value] : config.items()) {
    if (!is_part(key, value)) continue;
    if (Json found = find_quantization(value); !found.is_null()) return found;
  }
  return {};
}

/// Returns true when there was one.
bool erase_quantization(Json& config) {
  if (!config.is_object()) return false;
  bool has_changed = false;
  for (const char* key : kKeys) has_changed = config.erase(key) > 0 || has_changed;
  for (auto& [key, value] : config.items()) {
    if (is_part(key, value)) has_changed = erase_quantization(value) || has_changed;
  }
  return has_changed;
}

/// Returns null for a file that is not there or is no JSON.
Json read_json(const Path& folder, const char* name) {
  const std::optional<std::string> text = read_side_file(folder, name);
  return text ? parse_json(*text, name) : Json();
}

Json quantization_of(const converters::Source& source, const Path& input) {
  const Path folder = config_folder(source, input);
  if (Json found = find_quantization(read_json(folder, kConfigFile)); !found.is_null())
    return found;
  const Json model_opt = read_json(folder, kModelOptFile);
  if (model_opt.is_object() && model_opt.contains("quantization")) return model_opt["quantization"];
  const Json& client = source.catalog().client_state;
  const std::string key(kModelConfigKey);
  return client.is_object() && client.contains(key) ? find_quantization(client[key]) : Json();
}

}  // namespace

converters::Dequantized dequantized_input(std::unique_ptr<converters::Source> source,
                                          const Path& input, const DequantizeOptions& options) {
  if (!options.check_input) source->ignore_checksums();
  const Json config = quantization_of(*source, input);
  return converters::dequantized(std::move(source), config, options.frozen);
}

std::vector<std::string> incomplete_weights(const converters::Source& source, const Path& input) {
  return converters::incomplete_weights(source, quantization_of(source, input));
}

converters::QuantizedProblems quantized_problems(const converters::Source& source,
                                                 const Path& input) {
  return converters::quantized_problems(source, quantization_of(source, input));
}

std::vector<std::string> remarks_on_incomplete(converters::Source& source, const Path& input,
                                               bool check_input) {
  if (source.part_of()) return {};  // its scales may lie in another part
  if (!check_input) source.ignore_checksums();
  std::vector<std::string> remarks;
  try {
    for (const std::string& sentence : incomplete_weights(source, input))
      remarks.push_back(
          fmt::format("{}: it is copied as it is, and cannot be dequantized", sentence));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Corrupt) throw;  // a configuration that is no JSON says nothing
  }
  return remarks;
}

std::vector<std::string> incomplete_kept(const std::vector<std::string>& incomplete,
                                         const Path& input, bool allows_missing) {
  if (!incomplete.empty() && !allows_missing)
    raise(ErrorCode::Unsupported,
          fmt::format("{}: {} frozen weights that stay quantized cannot be dequantized, first {}",
                      input.string(), incomplete.size(), incomplete.front()),
          "bring back the files with its scales and descriptions; --allow-missing writes what is "
          "there, and --exclude_frozen_parameters the rest");
  std::vector<std::string> remarks;
  remarks.reserve(incomplete.size());
  for (const std::string& sentence : incomplete)
    remarks.push_back(
        fmt::format("{}: it is written as it is, and cannot be dequantized", sentence));
  return remarks;
}

std::vector<std::string> remarks_on_parted(const converters::Source& source, const Path& input,
                                           const ConversionPlan& plan, bool allows_missing) {
  if (plan.renames.empty() && plan.tensor_map.size() == source.catalog().tensors.size()) return {};
  const std::unordered_set<std::size_t> chosen(plan.tensor_map.begin(), plan.tensor_map.end());
  Renamer rename(plan.renames);
  std::vector<std::string> parted = converters::parted_weights(
      source, quantization_of(source, input),
      {.has = [&](std::size_t tensor) { return chosen.contains(tensor); },
       .rename = [&](const std::string& name) { return rename(name); }});
  if (parted.empty() || allows_missing) return parted;
  raise(ErrorCode::InvalidArgument,
        fmt::format("{} quantized weights would lose their values: {}", parted.size(),
                    parted.front()),
        "name them together, change their modules alone, or pass --dtype bf16, which makes numbers "
        "of them; --allow-missing writes the rest; nothing was written");
}

void forget_quantization(converters::SideFiles& files, Catalog& catalog) {
  for (auto& [name, text] : files) {
    if (name != kConfigFile) continue;
    Json config = parse_json(text, kConfigFile);
    if (erase_quantization(config)) text = config_text(config);
  }
  const std::string key(kModelConfigKey);
  if (catalog.client_state.is_object() && catalog.client_state.contains(key))
    erase_quantization(catalog.client_state[key]);
}

}  // namespace unishard::tools
