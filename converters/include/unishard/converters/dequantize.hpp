#pragma once
// Quantized weights as the floating-point numbers that they stand for. A quantized weight is a
// tensor of packed or narrow numbers beside tensors with its scales; MAPPING.md, section "Quantized
// weights", lists the kinds that are understood, and the formula of each.
#include "unishard/converters/source.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace unishard::converters {

/// What becomes of quantized weights that the catalog calls frozen, such as the base model of a
/// QLoRA run.
enum class FrozenWeights : std::uint8_t {
  Dequantize,
  Keep,  ///< they stay as they are, and so do their scales
};

struct Dequantized {
  std::unique_ptr<Source> source;
  std::size_t weights = 0;  ///< quantized weights that `source` gives as numbers
  std::size_t kept = 0;     ///< frozen ones that stay packed
  /// A sentence for each frozen one that stays packed and has no value: see incomplete_weights().
  std::vector<std::string> incomplete = {};
};

/// Returns a source that gives each quantized weight of the model in `source` as one tensor of
/// floating-point numbers in the state "weights", and that has no tensors of scales. The type is
/// the one that the files record for the weight where they do, else float32, in which the products
/// are computed. The source returned is `source` itself where nothing is quantized.
/// `quantization_config` is the member of this name of the model's config.json, or null. Tensors
/// decide what is quantized, and the configuration says what their names and shapes do not.
/// The result reads as thread-safely as `source` does, in bounded memory.
/// Throws: Unsupported, naming the tensor and the method, for quantized weights that are not
/// understood; Corrupt for scales that do not fit their weight.
Dequantized dequantized(std::unique_ptr<Source> source, const Json& quantization_config,
                        FrozenWeights frozen = FrozenWeights::Dequantize);

/// What stands in the way of a model's quantized weights, a sentence for each.
struct QuantizedProblems {
  /// Weights that can have no value: their scales or their description are missing, do not fit
  /// them, or are there without them.
  std::vector<std::string> incomplete;
  /// Weights of a method, or a form of one, that is not read, so that dequantized() refuses them.
  std::vector<std::string> not_read;
};

/// `quantization_config` is that of dequantized().
/// Throws: what reading the descriptions of weights throws, apart from Corrupt and Unsupported.
QuantizedProblems quantized_problems(const Source& source, const Json& quantization_config);

/// Returns the incomplete ones of quantized_problems(). Throws: as that function.
std::vector<std::string> incomplete_weights(const Source& source, const Json& quantization_config);

/// The tensors of a source that a result has, and their names there.
struct ResultNames {
  std::function<bool(std::size_t tensor)> has;
  std::function<std::string(const std::string& name)> rename;
};

/// Returns a sentence for each quantized weight of the model in `source` that is parted from its
/// scales or its description: the result has not all of them, or not under names that belong
/// together. Weights that have no value in `source` either are not among them.
std::vector<std::string> parted_weights(const Source& source, const Json& quantization_config,
                                        const ResultNames& result);

/// Copies what the metadata of safetensors files describe (torchao's weights) from one catalog to
/// another, and gives it the names that `rename` returns.
void copy_descriptions(const Catalog& from, Catalog& to,
                       const std::function<std::string(const std::string&)>& rename);

}  // namespace unishard::converters
