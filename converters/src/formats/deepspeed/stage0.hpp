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

/// Throws: Unsupported, naming parameters, when several of them fit the same state.
Stage0Optimizer read_stage0(const TorchFile& file, const ModelFile& model, Notes& notes);

}  // namespace unishard::converters::deepspeed
