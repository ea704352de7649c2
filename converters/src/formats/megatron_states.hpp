#pragma once
// The optimizer in a classic file of Megatron-LM, which numbers its states. They belong to the
// parameters in the model's order, those with weight decay before those without, each kind in a
// group of its own (get_param_groups in megatron/core/optimizer). The fp32 masters of a 16-bit
// model, `fp32_from_fp16_params`, prove it: rounded, they are the weights.
#include "unishard/converters/source.hpp"

#include <memory>
#include <set>
#include <string>

namespace unishard::converters {

/// A file whose states have the names of their parameters, or why they have not.
struct MegatronStates {
  std::unique_ptr<Source> part = nullptr;  ///< the model and its states, and nothing else
  std::string why_not = {};                ///< empty too where the file has no optimizer
  std::set<std::string> left_out = {};     ///< names of values of other kinds that hold tensors
  bool has_lone_schedule = false;          ///< the file has an optimizer's schedule without it
};

/// Returns why two tensor-parallel ranks of one stage have not the same states: their steps, or
/// other values of a parameter that are no tensors, differ. Empty where they are alike.
std::string find_different_value(const Catalog& first, const Catalog& other);

/// Puts the groups in the order of `first`, the catalog of another rank, unless it is null: a stage
/// that begins with a norm has the group without weight decay first. Reads both ends of each
/// master.
/// Throws: as open_torch() does; Corrupt for a file that was written as another rank's.
MegatronStates open_with_states(Storage& storage, const Path& file, const Catalog* first);

}  // namespace unishard::converters
