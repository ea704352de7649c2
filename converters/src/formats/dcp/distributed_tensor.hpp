#pragma once
// DTensor and ShardedTensor objects in torch.save files that each rank wrote for itself: a part of
// a tensor, and where in the whole it belongs.
#include "containers/torch_file.hpp"
#include "formats/dcp/boxes.hpp"

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
/// What the file of rank `rank` has of a tensor. Throws Corrupt for numbers that do not fit
/// together, Unsupported naming the placement for what cannot be put together.
RankTensor read_distributed_tensor(const torch::TorchFile& file, torch::Value value,
                                   std::uint64_t rank);

}  // namespace unishard::converters::dcp
