#include "reading/compressed_tensors.hpp"

#include "unishard/format/text.hpp"

#include "reading/quantized_weight.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace unishard::converters {
namespace {

using Scales = DeclaredWeights::Scales;

/// Returns the value that all descriptions have; null where they differ or lack it.
Json shared_value(const std::vector<Json>& weights, const char* key) {
  if (weights.empty()) return {};
  const Json first = weights.front().value(key, Json());
  const bool is_shared = std::ranges::all_of(
      weights, [&](const Json& other) { return other.value(key, Json()) == first; });
  return is_shared ? first : Json();
}

void take_strategy(const std::vector<Json>& weights, DeclaredWeights& declared) {
  const Json strategy = shared_value(weights, "strategy");
  if (strategy == "tensor") declared.scales = Scales::One;
  if (strategy == "channel") declared.scales = Scales::Rows;
  const Json size = shared_value(weights, "group_size");
  if (strategy != "group" || !size.is_number_integer() || size <= 0) return;
  declared.scales = Scales::Groups;
  declared.group_size = size.get<std::uint64_t>();
}

/// Groups may have formats of their own, of which the first is "mixed-precision" then.
std::string packed_format(const Json& config) {
  std::string format = text_at(config, "format");
  return format.ends_with("pack-quantized") || format == "marlin-24" ? format : "";
}

bool has_own_formats(const Json& config) {
  const auto groups = config.find("config_groups");
  if (groups == config.end() || !groups->is_object()) return false;
  return std::ranges::any_of(*groups, [&](const Json& group) {
    return group.is_object() && !text_at(group, "format").empty() &&
           text_at(group, "format") != text_at(config, "format");
  });
}

/// Whether scales of this size are those of a matrix; of other weights nothing is known.
bool fits(const DeclaredWeights& declared, const Shape& weight, const Shape& scales) {
  if (weight.size() != 2 || declared.scales == Scales::Unknown) return true;
  const std::uint64_t rows = weight[0], columns = weight[1];
  const std::uint64_t count = element_count(scales);
  const bool has_all_rows = !scales.empty() && scales[0] == rows;
  if (declared.scales == Scales::One) return count == 1;
  if (declared.scales == Scales::Rows) return count == rows && (has_all_rows || rows == 1);
  const std::uint64_t groups =
      columns / declared.group_size + (columns % declared.group_size == 0 ? 0 : 1);
  if (rows == 1 || groups == 1) return count == std::max(rows, groups);
  return scales == Shape{rows, groups};
}

std::string_view text_of(Scales scales) {
  if (scales == Scales::One) return "one for all";
  return scales == Scales::Rows ? "one for each row" : "one for each group of a row";
}

bool has_nonzero_byte(const NamedTensors& tensors, std::size_t tensor) {
  const TensorInfo& info = tensors[tensor];
  std::vector<std::byte> bytes;
  for (std::uint64_t at = 0; at < info.elements();) {
    const std::uint64_t end = std::min(at + kStepElements, info.elements());
    bytes.resize((end - at) * size_of(info.dtype));
    tensors.source().read(tensor, {at, end}, bytes);
    if (std::ranges::any_of(bytes, [](std::byte byte) { return byte != std::byte{0}; }))
      return true;
    at = end;
  }
  return false;
}

std::string_view without_dot(std::string_view module) {
  return module.substr(0, module.empty() ? 0 : module.size() - 1);
}

}  // namespace

std::string text_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::vector<Json> weights_of_groups(const Json& config) {
  std::vector<Json> weights;
  const auto groups = config.find("config_groups");
  if (groups == config.end() || !groups->is_object()) return weights;
  for (const auto& [name, group] : groups->items()) {
    if (group.is_object() && group.contains("weights") && group["weights"].is_object())
      weights.push_back(group["weights"]);
  }
  return weights;
}

DeclaredWeights declared_weights(const Json& config) {
  DeclaredWeights declared;
  const std::vector<Json> weights = weights_of_groups(config);
  take_strategy(weights, declared);
  const Json type = shared_value(weights, "type"),
             is_symmetric = shared_value(weights, "symmetric");
  if (type.is_string()) declared.type = type.get<std::string>();
  declared.is_symmetric = is_symmetric.is_boolean() && is_symmetric.get<bool>();
  if (!has_own_formats(config)) declared.packed_format = packed_format(config);
  if (const auto names = config.find("ignore"); names != config.end() && names->is_array()) {
    for (const Json& name : *names) {
      if (name.is_string()) declared.ignored.insert(name.get<std::string>());
    }
  }
  return declared;
}

void require_declared(const DeclaredWeights& declared, const NamedTensors& tensors,
                      const TensorInfo& weight, std::size_t scales,
                      std::optional<std::size_t> zero_points) {
  const std::string_view number = name_of(weight.dtype);
  const bool is_integer = info(weight.dtype).kind != Kind::Float;
  if (declared.type == (is_integer ? "float" : "int"))
    raise_tensor(weight, fmt::format("{} numbers, and the configuration says that its type is {}",
                                     number, quote(declared.type)));
  if (!declared.packed_format.empty())
    raise_tensor(weight, fmt::format("{} numbers, and the configuration says that their format is "
                                     "{}, in which weights are packed",
                                     number, quote(declared.packed_format)));
  if (declared.ignored.contains(std::string(without_dot(module_of(weight.fqn)))))
    raise_tensor(weight, "it has scales, and the configuration says that it is not quantized");
  if (!fits(declared, weight.shape, tensors[scales].shape))
    raise_tensor(weight, fmt::format("scales of size ({}) do not fit a weight of size ({}): the "
                                     "configuration says that there is {}",
                                     fmt::join(tensors[scales].shape, ", "),
                                     fmt::join(weight.shape, ", "), text_of(declared.scales)));
  if (declared.is_symmetric && zero_points && has_nonzero_byte(tensors, *zero_points))
    raise_tensor(weight, "it has zero points, and the configuration says that it is symmetric");
}

}  // namespace unishard::converters
