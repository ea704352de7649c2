#pragma once
// Reads stage 0: the model file has the whole optimizer, whose states have numbers instead of
// names. Names are found from the model's order, from shapes and, when these leave a choice, from
// values.
#include "formats/deepspeed/optimizer_file.hpp"
#include "formats/deepspeed/parameter_table.hpp"

#include <cstdint>
#include <vector>

namespace unishard::converters::deepspeed {

struct Stage0Optimizer {
  ParameterTable parameters;
  Json settings, loss_scaler;
  std::vector<std::int64_t> steps;
  bool is_there = false;  ///< false: a model without optimizer
};

/// `is_whole`: the file has whole parameters, not those of a tensor-parallel rank. States of
/// another shape than their parameter's are then read too, else left out with a note.
/// Throws: Unsupported, naming parameters, when several of them fit the same state.
Stage0Optimizer read_stage0(const TorchFile& file, const ModelFile& model, bool is_whole,
                            Notes& notes);

}  // namespace unishard::converters::deepspeed
