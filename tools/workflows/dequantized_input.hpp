#pragma once
// Inputs with quantized weights, for verbs that write weights of another type, and the
// configuration of the model without its quantization.
#include "unishard/converters/dequantize.hpp"
#include "unishard/converters/sink.hpp"

#include "workflows/conversion_plan.hpp"

#include <memory>
#include <string>
#include <vector>

namespace unishard::tools {

struct DequantizeOptions {
  converters::FrozenWeights frozen = converters::FrozenWeights::Dequantize;
  bool check_input = true;  ///< as ConversionOptions::check_input
};

/// Calls converters::dequantized() with the quantization_config of the model in `input`: that of
/// the config.json beside it (hf_quant_config.json of ModelOpt), else that of the configuration in
/// the client state.
/// Pre: nothing was read from `source` yet.
converters::Dequantized dequantized_input(std::unique_ptr<converters::Source> source,
                                          const Path& input, const DequantizeOptions& options);

/// Calls converters::incomplete_weights() with the configuration of the model in `input`.
std::vector<std::string> incomplete_weights(const converters::Source& source, const Path& input);

/// Calls converters::quantized_problems() in the same way.
converters::QuantizedProblems quantized_problems(const converters::Source& source,
                                                 const Path& input);

/// Returns a remark for each weight that a copy of `source` holds quantized and without a value.
/// Pre: nothing was read from `source` yet.
std::vector<std::string> remarks_on_incomplete(converters::Source& source, const Path& input,
                                               bool check_input);

/// Returns the remarks on frozen weights that stay quantized and have no value
/// (Dequantized::incomplete).
/// Throws: Unsupported, naming the first, when there are such and `allows_missing` is false.
std::vector<std::string> incomplete_kept(const std::vector<std::string>& incomplete,
                                         const Path& input, bool allows_missing);

/// Returns a remark for each quantized weight of `source` that `plan` parts from its scales or its
/// description: see converters::parted_weights().
/// Throws: InvalidArgument, naming the first, when there are such and `allows_missing` is false.
std::vector<std::string> remarks_on_parted(const converters::Source& source, const Path& input,
                                           const ConversionPlan& plan, bool allows_missing);

/// Removes the quantization_config from the config.json among `files` and from the configuration in
/// the catalog's client state, and from those of the model's parts in them.
void forget_quantization(converters::SideFiles& files, Catalog& catalog);

}  // namespace unishard::tools
