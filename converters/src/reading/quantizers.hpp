#pragma once
// The kinds of quantized weights that are understood. Each kind has a file of its name, which finds
// its weights by the names of the tensors beside them.
// Thread safety: pure functions, apart from what they read of the source.
#include "unishard/converters/loss.hpp"
#include "unishard/format/catalog.hpp"

#include "reading/named_tensors.hpp"
#include "reading/quantization_config.hpp"
#include "reading/quantized_weight.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace unishard::converters {

using QuantizedWeights = std::vector<QuantizedWeight>;

/// Adds float8 weights with `<weight>_scale_inv` or `<weight>_scale`, as transformers' "fp8" and
/// "fbgemm_fp8", compressed-tensors and ModelOpt write them, with `<module>.scale` of DeepSeek's
/// programs and `<module>.scale_weight` of ComfyUI, and int8 ones of compressed-tensors.
void find_block_scales(const NamedTensors& tensors, const QuantizationConfig& config,
                       QuantizedWeights& found);
/// Adds 4-bit weights with `<weight>.quant_state.bitsandbytes__nf4` (or fp4), and int8 ones with
/// `<module>.SCB`.
void find_bitsandbytes(const NamedTensors& tensors, const QuantizationConfig& config,
                       QuantizedWeights& found);
/// Adds the weights that torchao flattens for safetensors: `<module>._weight_qdata` and others,
/// described by metadata of the file.
void find_torchao(const NamedTensors& tensors, const QuantizationConfig& config,
                  QuantizedWeights& found);
/// Returns a loss for each tensor that the metadata describe and `catalog` lacks, in order of the
/// names. Plain tensors that the program that wrote the files may have left out are not among them.
Losses missing_of_torchao(const Catalog& catalog);
/// Removes the descriptions of these from the metadata that `catalog` records of its files.
void forget_missing_of_torchao(Catalog& catalog);
/// Adds the experts of gpt-oss: `<weight>_blocks` and `<weight>_scales`.
void find_mxfp4(const NamedTensors& tensors, const QuantizationConfig& config,
                QuantizedWeights& found);

/// A tensor that belongs to a quantized weight without a value.
struct Obstacle {
  enum class Kind : std::uint8_t {
    NotRead,     ///< how it was quantized is not known
    Incomplete,  ///< its method is read, and what belongs to it is missing
  };
  std::size_t tensor = 0;
  std::string problem;
  Kind kind = Kind::NotRead;
};

struct QuantizedModel {
  QuantizedWeights weights;
  std::vector<Obstacle> obstacles;  ///< in the order of the catalog
};

/// Returns the quantized weights of all kinds, and what stands in the way of others.
/// Throws: Unsupported, naming the tensor and the method, for a method, or a class of a method, of
/// which nothing is known; Corrupt for tensors of one weight that contradict each other, and where
/// one of them names another that is missing.
QuantizedModel find_quantized(const NamedTensors& tensors, const QuantizationConfig& config);

/// Returns whether the names of the tensors around it say that a tensor is quantized.
bool has_scales(const NamedTensors& tensors, const TensorInfo& tensor);

/// Returns the tensors of one number that only describe how activations and caches are quantized:
/// by their names, in modules of quantized weights or where a configuration says that the model is
/// quantized. Ascending.
std::vector<std::size_t> activation_scales(const NamedTensors& tensors,
                                           const QuantizedWeights& weights,
                                           const QuantizationConfig& config);

}  // namespace unishard::converters
