#pragma once
// DTensor and ShardedTensor objects in torch.save files of a single rank: a part of a tensor and
// its position in the whole.
#include "containers/boxes.hpp"
#include "containers/torch_file.hpp"

#include <string_view>
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
/// Returns the elements of a distributed tensor in a file that is read alone.
/// Throws: Unsupported when the file holds only a part of them; Corrupt for inconsistent numbers.
torch::TensorView read_whole_tensor(const torch::TorchFile& file, torch::Value value);
/// What read_whole_tensor() says of a part.
inline constexpr std::string_view kRankPart =
    "a rank's part of a distributed tensor, of which the files of other ranks hold the rest";
/// Returns the parts of a tensor that the file of rank `rank` holds.
/// Throws: Corrupt for inconsistent numbers; Unsupported, naming the placement, when it cannot be
/// assembled.
RankTensor read_distributed_tensor(const torch::TorchFile& file, torch::Value value,
                                   std::uint64_t rank);

}  // namespace unishard::converters::dcp
