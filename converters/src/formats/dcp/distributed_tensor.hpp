#pragma once
// DTensor and ShardedTensor objects in torch.save files of a single rank: a part of a tensor and
// its position in the whole.
#include "containers/boxes.hpp"
#include "containers/torch_file.hpp"

#include <vector>

namespace unishard::converters::dcp {

struct RankPart {
  Box box;
  torch::TensorView view;
};

struct RankTensor {
  Shape shape;  ///< of the whole tensor
  std::vector<RankPart> parts;
};

bool is_distributed_tensor(torch::Value value);
/// Returns the parts of a tensor that the file of rank `rank` holds.
/// Throws: Corrupt for inconsistent numbers; Unsupported, naming the placement, when it cannot be
/// assembled.
RankTensor read_distributed_tensor(const torch::TorchFile& file, torch::Value value,
                                   std::uint64_t rank);

}  // namespace unishard::converters::dcp
