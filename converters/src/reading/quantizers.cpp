#include "reading/quantizers.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace unishard::converters {
namespace {

constexpr std::array kFamilies = {find_torchao, find_bitsandbytes, find_block_scales, find_mxfp4};

/// The methods in quantization_config whose weights the families find.
constexpr std::array<std::string_view, 8> kMethods = {
    "fp8",      "fbgemm_fp8", "mxfp8",        "mxfp4",
    "modelopt", "torchao",    "bitsandbytes", "compressed-tensors"};

struct Pattern {
  std::string_view suffix, method;
  std::string_view beside = {};  ///< end of another name that must be there as well
};
/// Ends of names that only quantized weights have, of methods that are not read or of tensors that
/// no family took because others are missing.
constexpr std::array<Pattern, 16> kUnread = {
    {{".qweight", "GPTQ or AWQ"},
     {".qzeros", "GPTQ or AWQ"},
     {".g_idx", "GPTQ"},
     {".codebooks", "AQLM", ".codes"},
     {".W_q", "HQQ"},
     {".weight_packed", "compressed-tensors in packed numbers"},
     {".weight_global_scale", "compressed-tensors in packed numbers"},
     {".weight_scale_2", "ModelOpt in 4 bits"},
     {".pre_quant_scale", "ModelOpt with scaled inputs"},
     {".weight._data", "quanto"},
     {".weight_scales", "EETQ"},
     {"._weight_qdata", "torchao"},
     {".SCB", "bitsandbytes"},
     {".quant_state.bitsandbytes__nf4", "bitsandbytes"},
     {".quant_state.bitsandbytes__fp4", "bitsandbytes"},
     {".weight_scale_inv", "FP8"}}};

/// Ends of the names of scales that are one of many other things where no weight is beside them.
constexpr std::array<std::string_view, 7> kScales = {
    "_scale", "_scale_inv", "_zero_point", ".absmax", "_scales", "_g_idx", "_shape"};

/// Tensors that describe activations and caches: the last part of their names.
constexpr std::array<std::string_view, 11> kActivations = {
    "input_scale",  "input_zero_point",  "input_scale_ub", "input_global_scale",
    "output_scale", "output_zero_point", "k_scale",        "v_scale",
    "q_scale",      "kv_scale",          "prob_scale"};

/// Integer tensors of models that are no weights.
constexpr std::array<std::string_view, 5> kIndices = {"bias", "mask", "position_ids",
                                                      "token_type_ids", "relative_position_index"};

constexpr const char* kHint =
    "convert without --dtype copies the weights, their scales and the configuration as they are";

[[noreturn]] void raise_unread(const TensorInfo& tensor, std::string_view problem) {
  raise(ErrorCode::Unsupported, fmt::format("{}: {}", tensor.label(), problem), kHint);
}

std::string_view last_part(std::string_view name) { return name.substr(module_of(name).size()); }

/// Whether a tensor has the type of quantized numbers.
bool is_narrow(const TensorInfo& tensor) {
  return size_of(tensor.dtype) == 1 && tensor.dtype != DType::Bool;
}

bool is_known(const QuantizationConfig& config) {
  return config.method.empty() || std::ranges::count(kMethods, config.method) > 0;
}

/// Tensors of which each is a weight, or serves weights, once.
class Uses {
 public:
  Uses(const NamedTensors& tensors, const QuantizedWeights& weights) {
    for (const QuantizedWeight& weight : weights) {
      if (!numbers_.emplace(weight.tensor, &weight).second)
        raise_tensor(tensors[weight.tensor], "two kinds of quantized weights claim it");
      if (!names_.insert(weight.fqn).second ||
          (weight.fqn != tensors[weight.tensor].fqn && tensors.find(weight.fqn)))
        raise_tensor(tensors[weight.tensor],
                     fmt::format("there is a second weight {}", quote(weight.fqn)));
    }
    for (const QuantizedWeight& weight : weights) {
      for (const std::size_t side : weight.sides) {
        if (numbers_.contains(side))
          raise_tensor(tensors[side], "it is both a weight and the scales of another");
        sides_.insert(side);
      }
    }
  }

  bool contains(std::size_t tensor) const {
    return numbers_.contains(tensor) || sides_.contains(tensor);
  }

 private:
  std::unordered_map<std::size_t, const QuantizedWeight*> numbers_;
  std::unordered_set<std::string_view> names_;
  std::unordered_set<std::size_t> sides_;
};

/// Throws: Unsupported when the name is that of a part of a quantized weight.
void require_no_part(const NamedTensors& tensors, const TensorInfo& tensor,
                     const QuantizationConfig& config) {
  for (const Pattern& pattern : kUnread) {
    if (!tensor.fqn.ends_with(pattern.suffix)) continue;
    const std::string_view module =
        std::string_view(tensor.fqn).substr(0, tensor.fqn.size() - pattern.suffix.size());
    if (pattern.beside.empty() || tensors.find(fmt::format("{}{}", module, pattern.beside)))
      raise_unread(tensor, fmt::format("a part of a weight that {} quantized, which is not read",
                                       pattern.method));
  }
  for (const std::string_view suffix : kScales) {
    if (!tensor.fqn.ends_with(suffix)) continue;
    const auto weight =
        tensors.find(std::string_view(tensor.fqn).substr(0, tensor.fqn.size() - suffix.size()));
    if (weight && (config.is_given || is_narrow(tensors[*weight])))
      raise_unread(tensor, "scales of a weight that is quantized in a way that is not read");
  }
}

/// Throws: Unsupported when the configuration says that weights are quantized, and the tensor may
/// be one of which nothing gives the scales.
void require_no_numbers(const TensorInfo& tensor, const QuantizationConfig& config) {
  if (!config.is_given) return;
  const std::string method = config.method.empty() ? "quantization_config" : config.method;
  const DTypeInfo& type = info(tensor.dtype);
  const bool is_integer = type.kind == Kind::Signed || type.kind == Kind::Unsigned;
  const bool is_index = std::ranges::count(kIndices, last_part(tensor.fqn)) > 0;
  const bool is_packed = config.packed_type == tensor.dtype && tensor.shape.size() == 2 &&
                         tensor.shape[0] > 1 && tensor.shape[1] == 1;
  const bool is_float8 = type.kind == Kind::Float && type.bytes == 1;
  const bool is_array = is_integer && type.bytes <= 4 && tensor.shape.size() > 1 && !is_index;
  if (is_float8 || is_array || is_packed)
    raise_unread(tensor, fmt::format("{} numbers without scales that are understood, and the "
                                     "model's configuration says that {} quantized its weights",
                                     type.name, method));
}

}  // namespace

QuantizedWeights find_quantized(const NamedTensors& tensors, const QuantizationConfig& config) {
  QuantizedWeights found;
  for (const auto& find : kFamilies) find(tensors, config, found);
  if (!found.empty() && !is_known(config))
    raise_unread(tensors[found.front().tensor],
                 fmt::format("weights that {} quantized are not read", config.method));
  const Uses uses(tensors, found);
  const std::vector<std::size_t> of_activations = activation_scales(tensors, found, config);
  for (const std::size_t tensor : tensors.candidates()) {
    const TensorInfo& info = tensors[tensor];
    if (uses.contains(tensor) || std::ranges::binary_search(of_activations, tensor) ||
        tensors.serves_kept(info.fqn))
      continue;
    require_no_part(tensors, info, config);
    require_no_numbers(info, config);
  }
  return found;
}

bool has_scales(const NamedTensors& tensors, const TensorInfo& tensor) {
  constexpr std::array<std::string_view, 5> kBeside = {"_scale", "_scale_inv", ".absmax",
                                                       ".quant_state.bitsandbytes__nf4",
                                                       ".quant_state.bitsandbytes__fp4"};
  const auto is_there = [&](std::string_view suffix) {
    return tensors.find(fmt::format("{}{}", tensor.fqn, suffix)).has_value();
  };
  if (std::ranges::any_of(kBeside, is_there)) return true;
  return tensor.dtype == DType::Int8 &&
         tensors.find(fmt::format("{}SCB", module_of(tensor.fqn))).has_value();
}

std::vector<std::size_t> activation_scales(const NamedTensors& tensors,
                                           const QuantizedWeights& weights,
                                           const QuantizationConfig& config) {
  if (weights.empty()) return {};
  std::unordered_set<std::string_view> modules;  // above a quantized weight
  for (const QuantizedWeight& weight : weights) {
    std::string_view module = module_of(weight.fqn);
    for (; !module.empty() && modules.insert(module).second;)
      module = module_of(module.substr(0, module.size() - 1));
  }
  std::vector<std::size_t> found;
  for (const std::size_t tensor : tensors.candidates()) {
    const TensorInfo& scale = tensors[tensor];
    if (scale.elements() == 1 && (config.is_given || modules.contains(module_of(scale.fqn))) &&
        std::ranges::count(kActivations, last_part(scale.fqn)) > 0)
      found.push_back(tensor);
  }
  return found;
}

}  // namespace unishard::converters
