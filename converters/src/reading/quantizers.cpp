#include "reading/quantizers.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

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
/// Ends of names that only quantized weights have, of methods that are not read.
constexpr std::array<Pattern, 19> kUnread = {
    {{".qweight", "GPTQ or AWQ"},
     {".qzeros", "GPTQ or AWQ"},
     {".g_idx", "GPTQ"},
     {".codebooks", "AQLM", ".codes"},
     {".W_q", "HQQ"},
     {".B", "Marlin", ".workspace"},
     {".q_weight", "EXL2", ".q_scale"},
     {".trellis", "EXL3", ".suh"},
     {".Qidxs", "QuIP#", ".SU"},
     {".dense_weights", "SpQR"},
     {".centroids.weight", "VPTQ", ".indices"},
     {".comfy_quant", "ComfyUI"},
     {".weight_packed", "compressed-tensors in packed numbers"},
     {".weight_global_scale", "compressed-tensors in packed numbers"},
     {".weight_scale_2", "ModelOpt in 4 bits"},
     {".pre_quant_scale", "ModelOpt with scaled inputs"},
     {".weight._data", "quanto"},
     {".weight_scales", "EETQ"},
     {"._weight_qdata", "torchao"}}};

/// The same of methods that are read: no family took such a tensor, because others are missing.
constexpr std::array<Pattern, 6> kLeft = {{{".SCB", "bitsandbytes"},
                                           {".weight_format", "bitsandbytes"},
                                           {".absmax", "bitsandbytes", ".quant_map"},
                                           {".quant_map", "bitsandbytes"},
                                           {".quant_state.bitsandbytes__nf4", "bitsandbytes"},
                                           {".quant_state.bitsandbytes__fp4", "bitsandbytes"}}};

/// Ends of the names of scales that are one of many other things where no weight is beside them.
constexpr std::array<std::string_view, 7> kScales = {
    "_scale", "_scale_inv", "_zero_point", ".absmax", "_scales", "_g_idx", "_shape"};

/// Tensors that describe activations and caches: the last part of their names.
constexpr std::array<std::string_view, 12> kActivations = {
    "scale_input",  "input_scale",       "input_zero_point", "input_scale_ub", "input_global_scale",
    "output_scale", "output_zero_point", "k_scale",          "v_scale",        "q_scale",
    "kv_scale",     "prob_scale"};

/// Integer tensors of models that are no weights.
constexpr std::array<std::string_view, 5> kIndices = {"bias", "mask", "position_ids",
                                                      "token_type_ids", "relative_position_index"};

constexpr const char* kMethodHint =
    "convert without --dtype copies the weights, their scales and the configuration as they are; "
    "where the weights are plain numbers in spite of it, remove quantization_config from the "
    "model's config.json";

std::string_view last_part(std::string_view name) { return name.substr(module_of(name).size()); }

bool is_index(const TensorInfo& tensor) {
  return std::ranges::count(kIndices, last_part(tensor.fqn)) > 0;
}

/// Whether a tensor has the type of quantized numbers.
bool is_narrow(const TensorInfo& tensor) {
  return size_of(tensor.dtype) == 1 && tensor.dtype != DType::Bool;
}

/// Whether it may be a quantized matrix: of narrow numbers, or of numbers that are packed into the
/// integers of a "weight", as MLX does it.
bool may_be_quantized(const TensorInfo& tensor) {
  const Kind kind = info(tensor.dtype).kind;
  const bool is_integer = kind == Kind::Signed || kind == Kind::Unsigned;
  return tensor.shape.size() > 1 && !is_index(tensor) &&
         (is_narrow(tensor) || (is_integer && last_part(tensor.fqn) == "weight"));
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

/// The words of the last part of a name: "weight_inv_scale" has three.
std::vector<std::string_view> words_of(std::string_view part) {
  std::vector<std::string_view> words;
  while (!part.empty()) {
    const std::size_t end = std::min(part.find('_'), part.size());
    if (end > 0) words.push_back(part.substr(0, end));
    part.remove_prefix(std::min(end + 1, part.size()));
  }
  return words;
}

/// Whether a word of a name is that of scales: "scale", "qscale", "absmax".
bool is_scale_word(std::string_view word) {
  return word.ends_with("scale") || word.ends_with("scales") || word == "absmax" || word == "amax";
}

/// Whether a word may stand beside such a word and tells no more: "weight_inv_scale".
bool is_word_beside(std::string_view word) { return word == "inv" || is_scale_word(word); }

/// Tensors that by their names are the scales of a weight beside them, whoever wrote them so.
class ScaleNames {
 public:
  ScaleNames(const NamedTensors& tensors, const Uses& uses) {
    for (const std::size_t tensor : tensors.candidates()) {
      const std::string_view name = last_part(tensors[tensor].fqn);
      if (!uses.contains(tensor) && std::ranges::any_of(words_of(name), is_scale_word) &&
          std::ranges::count(kActivations, name) == 0)
        modules_[module_of(tensors[tensor].fqn)].push_back(tensor);
    }
  }

  /// Returns the tensor that may be the scales of the matrix `weight`: in its module or below its
  /// name, of another type, no larger, and with no word that the weight's name lacks. A model whose
  /// parameters were all cast to float8 has scales of the weights' own type. What lies in no module
  /// has a word of the weight's name.
  std::optional<std::size_t> find(const NamedTensors& tensors, const TensorInfo& weight) const {
    const std::string below = weight.fqn + ".";
    for (const std::string_view module : {module_of(weight.fqn), std::string_view(below)}) {
      const auto scales = modules_.find(module);
      if (scales == modules_.end()) continue;
      for (const std::size_t tensor : scales->second) {
        if (may_scale(tensors[tensor], weight)) return tensor;
      }
    }
    return std::nullopt;
  }

 private:
  static bool may_scale(const TensorInfo& scale, const TensorInfo& weight) {
    if (scale.dtype == weight.dtype || scale.elements() > weight.elements()) return false;
    const std::vector<std::string_view> own = words_of(last_part(weight.fqn));
    std::size_t shared = 0;
    for (const std::string_view word : words_of(last_part(scale.fqn))) {
      const bool is_shared = std::ranges::count(own, word) > 0;
      if (!is_shared && !is_word_beside(word)) return false;
      shared += is_shared ? 1 : 0;
    }
    return shared > 0 || !module_of(scale.fqn).empty();
  }

  std::unordered_map<std::string_view, std::vector<std::size_t>> modules_;
};

/// Looks for a tensor beside a matrix that may be quantized, which looks like its scales.
std::optional<std::string> unknown_scales(const ScaleNames& names, const NamedTensors& tensors,
                                          const TensorInfo& weight) {
  if (!may_be_quantized(weight)) return std::nullopt;
  const auto scales = names.find(tensors, weight);
  if (!scales) return std::nullopt;
  return fmt::format(
      "{} numbers, of which {} may be the scales, and how they are to be multiplied is not known",
      name_of(weight.dtype), tensors[*scales].label());
}

/// Throws: Unsupported for a model that a method quantized of which nothing is known.
void require_known_method(const NamedTensors& tensors, const QuantizedWeights& found,
                          const QuantizationConfig& config) {
  if (is_known(config) || tensors.candidates().empty()) return;
  if (found.empty() && tensors.keeps_any()) return;  // what stays as it is needs no method
  const std::size_t first = found.empty() ? tensors.candidates().front() : found.front().tensor;
  raise(ErrorCode::Unsupported,
        fmt::format("{}: weights that {} quantized are not read", tensors[first].label(),
                    config.method),
        kMethodHint);
}

/// Returns the first pattern that the name has.
template <class Patterns>
const Pattern* matching(const Patterns& patterns, const NamedTensors& tensors,
                        std::string_view name) {
  for (const Pattern& pattern : patterns) {
    if (!name.ends_with(pattern.suffix)) continue;
    const std::string_view module = name.substr(0, name.size() - pattern.suffix.size());
    if (pattern.beside.empty() || tensors.find(fmt::format("{}{}", module, pattern.beside)))
      return &pattern;
  }
  return nullptr;
}

/// What is left of a weight of MXFP4 where find_mxfp4() found one of its two tensors; empty for
/// others. Scales have no names of their own.
std::string_view left_of_mxfp4(const TensorInfo& tensor, const QuantizationConfig& config) {
  constexpr std::uint64_t kBytes = 16;  // of a block
  if (tensor.dtype != DType::UInt8) return {};
  const bool are_blocks =
      tensor.fqn.ends_with("_blocks") && tensor.shape.size() == 4 && tensor.shape.back() == kBytes;
  const bool are_scales = config.method == "mxfp4" && tensor.fqn.ends_with("_scales");
  if (are_blocks) return "blocks of MXFP4 without their scales";
  return are_scales ? "scales of MXFP4 without their blocks" : "";
}

/// Whether the scales of a weight are there and it is not, in whatever form.
bool is_without_weight(const NamedTensors& tensors, std::string_view name,
                       const QuantizationConfig& config) {
  for (const std::string_view end : {"_scale_inv", "_scale"}) {
    if (!name.ends_with(end)) continue;
    const std::string_view weight = name.substr(0, name.size() - end.size());
    const bool is_scale = last_part(weight) == "weight" && (end == "_scale_inv" || config.is_given);
    return is_scale && !tensors.find(weight) && !tensors.find(fmt::format("{}_packed", weight));
  }
  return false;
}

/// Says that a tensor is a part of a quantized weight, by its name.
std::optional<Obstacle> part_of_weight(const NamedTensors& tensors, std::size_t number,
                                       const QuantizationConfig& config) {
  const TensorInfo& tensor = tensors[number];
  const std::string_view name = tensor.fqn;
  if (const Pattern* const other = matching(kUnread, tensors, name))
    return Obstacle{number, fmt::format("a part of a weight that {} quantized, which is not read",
                                        other->method)};
  if (const Pattern* const left = matching(kLeft, tensors, name))
    return Obstacle{number,
                    fmt::format("a part of a weight that {} quantized, and other parts that belong "
                                "to it are missing",
                                left->method),
                    Obstacle::Kind::Incomplete};
  if (const std::string_view left = left_of_mxfp4(tensor, config); !left.empty())
    return Obstacle{number, std::string(left), Obstacle::Kind::Incomplete};
  if (is_without_weight(tensors, name, config))
    return Obstacle{number, "scales without their weight", Obstacle::Kind::Incomplete};
  for (const std::string_view suffix : kScales) {
    if (!name.ends_with(suffix)) continue;
    const auto weight = tensors.find(name.substr(0, name.size() - suffix.size()));
    if (weight && (config.is_given || is_narrow(tensors[*weight])))
      return Obstacle{number, "scales of a weight that is quantized in a way that is not read"};
  }
  return std::nullopt;
}

/// Says that the configuration calls weights quantized, and that a tensor may be one of which
/// nothing gives the scales.
std::optional<Obstacle> without_scales(const TensorInfo& tensor, std::size_t number,
                                       const QuantizationConfig& config) {
  if (!config.is_given) return std::nullopt;
  const std::string method = config.method.empty() ? "quantization_config" : config.method;
  const DTypeInfo& type = info(tensor.dtype);
  const bool is_integer = type.kind == Kind::Signed || type.kind == Kind::Unsigned;
  const bool is_packed = config.packed_type == tensor.dtype && tensor.shape.size() == 2 &&
                         tensor.shape[0] > 1 && tensor.shape[1] == 1;
  const bool is_float8 = type.kind == Kind::Float && type.bytes == 1;
  const bool is_array =
      is_integer && type.bytes <= 4 && tensor.shape.size() > 1 && !is_index(tensor);
  if (!is_float8 && !is_array && !is_packed) return std::nullopt;
  // Other integers may be of anything, and a method without a name of anyone.
  const bool is_sure = is_float8 || is_packed || tensor.dtype == DType::Int8;
  return Obstacle{
      number,
      fmt::format("{} numbers without scales that are understood, and the model's "
                  "configuration says that {} quantized its weights",
                  type.name, method),
      is_sure && !config.method.empty() ? Obstacle::Kind::Incomplete : Obstacle::Kind::NotRead};
}

}  // namespace

QuantizedModel find_quantized(const NamedTensors& tensors, const QuantizationConfig& config) {
  QuantizedModel model;
  for (const auto& find : kFamilies) find(tensors, config, model.weights);
  require_known_method(tensors, model.weights, config);
  const Uses uses(tensors, model.weights);
  const std::vector<std::size_t> of_activations = activation_scales(tensors, model.weights, config);
  const ScaleNames scale_names(tensors, uses);
  for (const std::size_t tensor : tensors.candidates()) {
    const TensorInfo& info = tensors[tensor];
    if (uses.contains(tensor) || std::ranges::binary_search(of_activations, tensor) ||
        tensors.serves_kept(info.fqn))
      continue;
    if (auto part = part_of_weight(tensors, tensor, config)) {
      model.obstacles.push_back(*std::move(part));
    } else if (auto alone = without_scales(info, tensor, config)) {
      model.obstacles.push_back(*std::move(alone));
    } else if (auto scales = unknown_scales(scale_names, tensors, info)) {
      model.obstacles.push_back({tensor, *std::move(scales)});
    }
  }
  return model;
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
