#pragma once
// The weights of nanotron: a safetensors file for each tensor, or for each rank's part of it, in
// folders that mirror the modules (`model/model/decoder/0/pp_block/attn/qkv_proj/
// model_weight_pp-rank-0-of-1_tp-rank-1-of-2.safetensors`).
#include "formats/dcp/nanotron_names.hpp"
#include "formats/dcp/state_dict.hpp"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters::dcp::nanotron {

/// A rank's part of a tensor.
struct Cut {
  torch::TensorView view;  ///< the rank's tensor
  std::vector<CutBox> boxes;
};

struct Parameter {
  Shape shape;  ///< of the whole
  /// By the ranks of tensor and expert parallelism; empty: each rank has all of it, in `whole`.
  std::map<std::pair<std::uint64_t, std::uint64_t>, Cut> cuts;
  torch::TensorView whole;

  /// Returns the part that the rank has. Throws: Corrupt where it has none.
  Cut cut_of(std::uint64_t tensor_rank, std::uint64_t expert_rank) const;
};
/// By the names of the model, which are the paths of the files.
using Parameters = std::map<std::string, Parameter>;

/// Adds all tensors below `folder`, with keys below "model". Sets builder.out.world_size to the
/// number of the ranks that the names count.
/// Throws: Corrupt, naming it, for a rank's file that is missing or in another's place, and for
/// files that contradict each other; Unsupported for parts that do not say where they lie.
Parameters read_weights(Storage& storage, const Path& folder, StateDictBuilder& builder);

}  // namespace unishard::converters::dcp::nanotron
