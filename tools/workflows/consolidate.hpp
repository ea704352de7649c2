#pragma once
// One model out of a sharded training state: which tensors of a source become which weights. Pure
// planning; copy() of the converters does the work.
#include "unishard/converters/source.hpp"

#include <optional>
#include <string>
#include <vector>

namespace unishard::tools {

struct ConsolidateOptions {
  std::optional<DType> dtype;  ///< of trained parameters, frozen ones and floating buffers
  bool exclude_frozen = false;
};

struct ConsolidatePlan {
  Catalog target;                       ///< one tensor per parameter and buffer
  std::vector<std::size_t> tensor_map;  ///< target tensor -> source tensor
  std::vector<std::pair<std::string, std::string>>
      metadata;  ///< where it came from; alias -> target
  std::size_t frozen_left_out = 0;
};

/// For each fqn, in order of first appearance, the tensor that stands for it: fp32, else weights,
/// else buffer. Fqns with other states only have none.
std::vector<std::size_t> model_tensors(const Catalog& catalog);

/// A parameter is its fp32 master, or else its weights. Without a dtype the rules of DeepSpeed's
/// zero_to_fp32 hold: trained parameters and buffers become float32 where they float, frozen
/// parameters keep their type. With a dtype everything that floats takes it. Throws Mismatch when
/// there is nothing to write.
ConsolidatePlan plan_consolidate(const converters::Source& source,
                                 const ConsolidateOptions& options);

}  // namespace unishard::tools
