#pragma once
// How tensor parallelism cut one tensor among its ranks, and the checks that every description of a
// cut must pass.
#include "unishard/format/memory.hpp"

#include "containers/joined_source.hpp"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters::deepspeed {

struct TensorCut {
  Shape shape;                     ///< of the whole tensor
  bool is_mean = false;            ///< the whole tensor is the mean of the ranks' tensors
  std::vector<SharedBox> boxes;    ///< as JoinedTensor::boxes; empty for a mean
  std::uint64_t dropped_rows = 0;  ///< rows of padding that the ranks have behind `shape`
};

/// What every description of a cut is compared with.
/// Lifetime: everything it refers to must outlive its use.
struct CutContext {
  const std::vector<Shape>& shards;  ///< shapes of the ranks' tensors
  const std::string& what;           ///< begins messages
  MemoryBudget& memory;              ///< of all cuts of the checkpoint
};

/// Collects the boxes of one cut. Equal boxes of several ranks become copies of one.
class CutBuilder {
 public:
  CutBuilder(Shape shape, const CutContext& context);
  /// Adds a box that rank `rank` has at `offsets` of its tensor. An empty box is left out.
  /// Throws: Corrupt when it reaches out of one of the tensors; Unsupported or MemoryLimit
  /// for too many boxes.
  void add(std::uint32_t rank, Box whole, Shape offsets);
  /// Throws: Corrupt unless the boxes cover the whole tensor and every rank's tensor exactly.
  TensorCut finish();

 private:
  TensorCut cut_;
  const CutContext& in_;
  std::map<std::pair<Shape, Shape>, std::size_t> known_;  ///< boxes by offsets and sizes
};

/// Returns the cut of a tensor that every rank has whole.
/// Throws: Corrupt when the shapes differ.
TensorCut replicated_cut(const CutContext& context);
/// Returns the cut of a tensor that consists of sub-tensors one behind the other along `dimension`,
/// each of them cut along it: rank r has widths[i][r] of sub-tensor i.
/// Throws: Corrupt when the widths do not fit the shapes.
TensorCut concatenated_cut(const CutContext& context, std::size_t dimension,
                           const std::vector<std::vector<std::uint64_t>>& widths);
/// Returns whether two cuts of the same tensors have each element at the same places. Their boxes
/// may be split in different ways.
bool is_same_cut(const TensorCut& one, const TensorCut& other);
/// Removes the rows from number `rows` on.
void keep_rows(TensorCut& cut, std::uint64_t rows);

/// Returns the box of a row-major tensor of `shape` that torch.as_strided(sizes, strides, offset)
/// is; nullopt when it is none.
std::optional<Box> box_of(const Shape& shape, const Shape& sizes, const Shape& strides,
                          std::uint64_t offset);

}  // namespace unishard::converters::deepspeed
