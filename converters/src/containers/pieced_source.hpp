#pragma once
// A source whose tensors are put together from pieces of torch storages: what DeepSpeed's flat
// partitions and plain torch.save files have in common.
#include "unishard/converters/source.hpp"

#include "containers/tensor_view.hpp"

#include <string>
#include <vector>

namespace unishard::converters {

/// Elements `range` of a tensor are the elements of `view` from `first` on.
struct ViewPiece {
  ElementRange range;
  torch::TensorView view;
  std::uint64_t first = 0;
};

struct PiecedCatalog {
  std::string format;
  Catalog catalog;
  /// One entry per catalog tensor. Empty for a derived tensor: it is rounded from its fqn's fp32.
  std::vector<std::vector<ViewPiece>> pieces;
  std::vector<std::string> notes;  ///< what the files hold and the catalog cannot say
};

/// Sorts the pieces; throws Corrupt naming the tensor and the range when an element is in no piece
/// or in two, or a piece leaves its view. `where` names the checkpoint.
std::unique_ptr<Source> make_pieced_source(PiecedCatalog parts, const std::string& where);

}  // namespace unishard::converters
