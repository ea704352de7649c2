#pragma once
// What the tensors of tensor-parallel ranks have in common: shapes and values.
#include "formats/deepspeed/rank_join.hpp"

#include <map>
#include <string>
#include <vector>

namespace unishard::converters {

/// One parameter on all ranks.
struct ComparedTensor {
  std::vector<Shape> shards;
  bool is_equal = false;       ///< all ranks have the same bits
  bool has_one_value = false;  ///< all elements of all ranks have the same bits
};

/// Returns the parameters by name; buffers that all ranks have alike need no rule and are left out.
/// A parameter is its master, or else its weights.
/// Throws: Corrupt when only some ranks have a parameter; what reads throw.
std::map<std::string, ComparedTensor> compare_ranks(const deepspeed::CutParts& parts);

}  // namespace unishard::converters
