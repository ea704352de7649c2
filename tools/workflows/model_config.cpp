#include "workflows/model_config.hpp"

#include "workflows/conversion_plan.hpp"
#include "workflows/side_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

namespace unishard::tools {
namespace {

constexpr std::string_view kConfigFile = "config.json";
constexpr std::size_t kConfigBytes = std::size_t{1} << 20;

/// Returns the dtype that holds every floating-point tensor exactly; nullopt when there is none, or
/// when some have 8 bits, since transformers computes in no such type.
std::optional<DType> floating_dtype(const Catalog& catalog) {
  std::set<DType> dtypes;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (info(tensor.dtype).kind == Kind::Float) dtypes.insert(tensor.dtype);
  }
  if (dtypes.empty()) return std::nullopt;
  const auto [least, most] = std::ranges::minmax(dtypes, {}, size_of);
  if (size_of(least) == 1) return std::nullopt;
  if (dtypes.size() == 1) return most;
  return size_of(most) == 8 ? DType::Float64 : DType::Float32;
}

/// Sets the dtypes that `config`, a model's configuration, and those of its parts state. Returns
/// true when one changed.
bool set_dtype(Json& config, std::string_view dtype) {
  constexpr std::string_view kQuantized = "quantization_config";
  bool has_changed = false;
  for (auto& [key, value] : config.items()) {
    if ((key == "dtype" || key == "torch_dtype") && value.is_string() && value != dtype) {
      value = dtype;
      has_changed = true;
    } else if (value.is_object() && key.ends_with("_config") && key != kQuantized) {
      has_changed = set_dtype(value, dtype) || has_changed;
    }
  }
  return has_changed;
}

/// Makes the config.json that lies beside the input agree with the weights, so that from_pretrained
/// loads them as they are.
void adapt_text(std::string& text, const Catalog& target) {
  const auto dtype = floating_dtype(target);
  if (!dtype) return;
  Json config = parse_json(text, std::string(kConfigFile));
  if (config.is_object() && set_dtype(config, name_of(*dtype))) text = config_text(config);
}

auto find_config(converters::SideFiles& files) {
  return std::ranges::find(files, kConfigFile,
                           [](const auto& file) { return std::string_view(file.first); });
}

}  // namespace

std::string config_text(const Json& config) {
  return config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void add_model_config(converters::SideFiles& files, const Catalog& source, const Catalog& target,
                      std::vector<std::string>& notes) {
  const Json& client = source.client_state;
  if (find_config(files) != files.end() || !client.is_object() || !client.contains(kModelConfigKey))
    return;
  Json config = client[std::string(kModelConfigKey)];
  if (!config.is_object()) {
    notes.push_back(fmt::format("client_state.{}: not an object, so there is no {}",
                                kModelConfigKey, kConfigFile));
    return;
  }
  if (const auto dtype = floating_dtype(target)) set_dtype(config, name_of(*dtype));
  std::string text = config_text(config);
  if (text.size() > kConfigBytes) {
    notes.push_back(fmt::format("client_state.{}: {} bytes, more than {}, so there is no {}",
                                kModelConfigKey, text.size(), kConfigBytes, kConfigFile));
    return;
  }
  files.emplace_back(kConfigFile, std::move(text));
}

std::optional<std::string> remark_on_heads(const Path& folder, std::uint32_t ranks) {
  const auto text = read_side_file(folder, std::string(kConfigFile));
  const Json config = text && Json::accept(*text) ? parse_json(*text, kConfigFile) : Json();
  if (!config.is_object()) return std::nullopt;
  for (const char* key : {"num_key_value_heads", "num_attention_heads"}) {
    const auto heads = config.find(key);
    if (heads == config.end() || !heads->is_number_unsigned()) continue;
    if (heads->get<std::uint64_t>() % ranks == 0) continue;
    return fmt::format(
        "config.json says {} {}, which {} tensor-parallel ranks do not share evenly: DeepSpeed's "
        "AutoTP cuts unequal parts then, and those of the result are equal",
        key, heads->dump(), ranks);
  }
  return std::nullopt;
}

void adapt_model_config(converters::SideFiles& files, const Catalog& target) {
  const auto config = find_config(files);
  if (config == files.end()) return;
  Catalog model;
  for (const std::size_t index : model_tensors(target))
    model.tensors.push_back(target.tensors[index]);
  adapt_text(config->second, model);
}

converters::SideFiles model_side_files(const Path& input, const Catalog& source,
                                       const Catalog& target, std::vector<std::string>& notes) {
  converters::SideFiles files = find_side_files(input, notes);
  adapt_model_config(files, target);
  add_model_config(files, source, target, notes);
  return files;
}

}  // namespace unishard::tools
