#include "reading/quantization_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace unishard::converters {
namespace {

bool is_true_at(const Json& config, const char* key) {
  const auto found = config.find(key);
  return found != config.end() && found->is_boolean() && found->get<bool>();
}

bool is_false_at(const Json& config, const char* key) {
  const auto found = config.find(key);
  return found != config.end() && found->is_boolean() && !found->get<bool>();
}

/// ModelOpt names its algorithm alone, and compressed-tensors was once named after its maker.
std::string method_of(const Json& config) {
  std::string method = text_at(config, "quant_method");
  if (method == "sparseml") return "compressed-tensors";
  if (!method.empty()) return method;
  return config.contains("quant_algo") ? "modelopt" : "";
}

bool is_size(const Json& value) {
  // A configuration that was not parsed from text may have signed numbers.
  return value.is_number_integer() && value > 0;
}

void add_block(BlockSize block, QuantizationConfig& config) {
  if (std::ranges::count(config.blocks, block) == 0) config.blocks.push_back(block);
}

/// Takes the value of a key that gives the size of blocks; null gives none.
void take_block(const Json& value, QuantizationConfig& config) {
  if (value.is_null()) return;
  if (!value.is_array() || value.size() != 2 || !is_size(value[0]) || !is_size(value[1])) {
    config.problem =
        fmt::format("the block size {} is not two positive numbers", value.dump().substr(0, 80));
    return;
  }
  add_block({value[0].get<std::uint64_t>(), value[1].get<std::uint64_t>()}, config);
}

/// Whether the targets of a group, names of modules or patterns of them, tell layers apart.
bool names_layers(const Json& groups) {
  for (const auto& [name, group] : groups.items()) {
    const std::string targets = group.is_object() ? group.value("targets", Json()).dump() : "";
    if (targets.find_first_of("0123456789") != std::string::npos) return true;
  }
  return false;
}

/// compressed-tensors describes groups of modules. A size of groups that is null or -1 is that of
/// weights with a scale for each row.
void take_groups(const Json& config, QuantizationConfig& parsed) {
  const auto groups = config.find("config_groups");
  if (groups == config.end() || !groups->is_object()) return;
  std::size_t asymmetric = 0;
  const std::vector<Json> described = weights_of_groups(config);
  for (const Json& weights : described) {
    if (is_false_at(weights, "symmetric")) ++asymmetric;
    if (const auto size = weights.find("block_structure"); size != weights.end())
      take_block(*size, parsed);
    if (const auto size = weights.find("group_size"); size != weights.end() && is_size(*size))
      add_block({1, size->get<std::uint64_t>()}, parsed);
  }
  if (asymmetric == 0) return;
  if (asymmetric == described.size()) {
    parsed.zero_points = QuantizationConfig::ZeroPoints::Everywhere;
  } else if (!names_layers(*groups)) {
    parsed.zero_points = QuantizationConfig::ZeroPoints::SameInAllLayers;
  }
}

std::optional<DType> packed_type(const Json& config) {
  if (!is_true_at(config, "load_in_4bit") && !is_true_at(config, "_load_in_4bit"))
    return std::nullopt;
  return dtype_from_name(text_at(config, "bnb_4bit_quant_storage")).value_or(DType::UInt8);
}

}  // namespace

QuantizationConfig parse_quantization_config(const Json& config) {
  QuantizationConfig parsed;
  if (!config.is_object() || config.empty()) return parsed;
  parsed.is_given = true;
  parsed.method = method_of(config);
  if (const auto size = config.find("weight_block_size"); size != config.end()) {
    take_block(*size, parsed);
    parsed.is_of_blocks = parsed.blocks.size() == 1;
  }
  take_groups(config, parsed);
  if (parsed.method == "compressed-tensors") parsed.declared = declared_weights(config);
  if (parsed.method == "bitsandbytes") parsed.packed_type = packed_type(config);
  return parsed;
}

}  // namespace unishard::converters
