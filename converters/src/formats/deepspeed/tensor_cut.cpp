#include "formats/deepspeed/tensor_cut.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace unishard::converters::deepspeed {
namespace {

/// Upper bound on the boxes of one tensor. Real cuts have a few per rank.
constexpr std::size_t kBoxes = 1u << 14;

std::string text_of(const Shape& shape) { return fmt::format("({})", fmt::join(shape, ", ")); }

std::string of_rank(const CutContext& context, std::size_t rank) {
  return fmt::format("{}: tensor-parallel rank {}", context.what, rank);
}

/// Whether the copy has the box's elements at the same places of its shard as one of the others.
bool has_like_copy(const SharedBox& box, const SharedBox::Copy& copy, const SharedBox& other) {
  return std::ranges::any_of(other.copies, [&](const SharedBox::Copy& like) {
    if (like.shard != copy.shard) return false;
    for (std::size_t d = 0; d < copy.offsets.size(); ++d) {
      if (copy.offsets[d] + other.whole.offsets[d] != like.offsets[d] + box.whole.offsets[d])
        return false;
    }
    return true;
  });
}

bool is_disjoint(const Box& one, const Box& other) {
  for (std::size_t d = 0; d < one.sizes.size(); ++d) {
    if (one.offsets[d] + one.sizes[d] <= other.offsets[d] ||
        other.offsets[d] + other.sizes[d] <= one.offsets[d])
      return true;
  }
  return false;
}

}  // namespace

CutBuilder::CutBuilder(Shape shape, const CutContext& context) : in_(context) {
  element_count(shape);
  cut_.shape = std::move(shape);
}

void CutBuilder::add(std::uint32_t rank, Box whole, Shape offsets) {
  in_.memory.charge(sizeof(SharedBox) + 8 * whole.sizes.size() * sizeof(std::uint64_t));
  check_inside(cut_.shape, whole, in_.what);
  check_inside(in_.shards.at(rank), {offsets, whole.sizes}, of_rank(in_, rank));
  if (whole.elements() == 0) return;
  const auto [known, is_new] =
      known_.emplace(std::pair(whole.offsets, whole.sizes), cut_.boxes.size());
  if (is_new) {
    if (cut_.boxes.size() == kBoxes)
      raise(ErrorCode::Unsupported, fmt::format("{}: it is cut into too many boxes", in_.what));
    cut_.boxes.push_back({std::move(whole), {}});
  }
  cut_.boxes[known->second].copies.push_back({rank, std::move(offsets)});
}

TensorCut CutBuilder::finish() {
  std::vector<const Box*> boxes;
  std::vector<std::vector<Box>> held(in_.shards.size());
  for (const SharedBox& box : cut_.boxes) {
    boxes.push_back(&box.whole);
    for (const auto& [rank, offsets] : box.copies) held[rank].push_back({offsets, box.whole.sizes});
  }
  check_cover(cut_.shape, boxes, in_.what);
  for (std::size_t rank = 0; rank < held.size(); ++rank) {
    std::vector<const Box*> parts;
    for (const Box& box : held[rank]) parts.push_back(&box);
    check_cover(in_.shards[rank], parts, of_rank(in_, rank));
  }
  return std::move(cut_);
}

TensorCut replicated_cut(const CutContext& context) {
  const auto& shards = context.shards;
  const Shape& shape = shards.front();
  CutBuilder builder(shape, context);
  for (std::uint32_t rank = 0; rank < shards.size(); ++rank) {
    if (shards[rank] != shape) {
      raise(ErrorCode::Corrupt,
            fmt::format("{}: every tensor-parallel rank should have all of it, but its sizes are "
                        "{} on rank 0 and {} on rank {}",
                        context.what, text_of(shape), text_of(shards[rank]), rank));
    }
    builder.add(rank, {Shape(shape.size(), 0), shape}, Shape(shape.size(), 0));
  }
  return builder.finish();
}

TensorCut concatenated_cut(const CutContext& context, std::size_t dimension,
                           const std::vector<std::vector<std::uint64_t>>& widths) {
  const auto& shards = context.shards;
  Shape shape = shards.front();
  if (dimension >= shape.size()) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: it was cut along dimension {}, and its size on rank 0 is {}",
                      context.what, dimension, text_of(shape)));
  }
  shape[dimension] = 0;
  for (const Shape& shard : shards) {
    Shape others = shard;
    if (dimension < others.size()) others[dimension] = 0;
    if (others != shape) {
      raise(ErrorCode::Corrupt,
            fmt::format("{}: its sizes on the tensor-parallel ranks, {} and {}, differ in more "
                        "than dimension {}",
                        context.what, text_of(shards.front()), text_of(shard), dimension));
    }
  }
  for (const auto& of_ranks : widths) {
    if (of_ranks.size() != shards.size()) {
      raise(ErrorCode::Corrupt, fmt::format("{}: widths of {} ranks are given, and there are {}",
                                            context.what, of_ranks.size(), shards.size()));
    }
    for (const std::uint64_t width : of_ranks)
      shape[dimension] = checked_add(shape[dimension], width, "rows of a tensor");
  }
  CutBuilder builder(shape, context);
  Box whole{Shape(shape.size(), 0), shape};
  std::vector<std::uint64_t> at(shards.size(), 0);
  for (const auto& of_ranks : widths) {
    for (std::uint32_t rank = 0; rank < of_ranks.size(); ++rank) {
      whole.sizes[dimension] = of_ranks[rank];
      Shape offsets(shape.size(), 0);
      offsets[dimension] = at[rank];
      builder.add(rank, whole, std::move(offsets));
      whole.offsets[dimension] += of_ranks[rank];
      at[rank] += of_ranks[rank];
    }
  }
  return builder.finish();
}

bool is_same_cut(const TensorCut& one, const TensorCut& other) {
  if (one.shape != other.shape || one.is_mean != other.is_mean) return false;
  for (const SharedBox& box : one.boxes) {
    for (const SharedBox& like : other.boxes) {
      if (is_disjoint(box.whole, like.whole)) continue;
      if (box.copies.size() != like.copies.size()) return false;
      for (const SharedBox::Copy& copy : box.copies) {
        if (!has_like_copy(box, copy, like)) return false;
      }
    }
  }
  return true;
}

void keep_rows(TensorCut& cut, std::uint64_t rows) {
  if (cut.shape.empty() || cut.shape.front() <= rows) return;
  cut.dropped_rows = cut.shape.front() - rows;
  cut.shape.front() = rows;
  std::erase_if(cut.boxes, [&](const SharedBox& box) { return box.whole.offsets.front() >= rows; });
  for (SharedBox& box : cut.boxes)
    box.whole.sizes.front() = std::min(box.whole.sizes.front(), rows - box.whole.offsets.front());
}

std::optional<Box> box_of(const Shape& shape, const Shape& sizes, const Shape& strides,
                          std::uint64_t offset) {
  if (sizes.size() != shape.size() || strides.size() != shape.size()) return std::nullopt;
  Box box{Shape(shape.size(), 0), sizes};
  if (std::ranges::count(sizes, std::uint64_t{0}) > 0) return box;
  std::uint64_t stride = element_count(shape);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0) return std::nullopt;
    stride /= shape[d];
    if (sizes[d] > 1 && strides[d] != stride) return std::nullopt;
    box.offsets[d] = offset / stride;
    offset %= stride;
  }
  if (offset != 0) return std::nullopt;
  return box;
}

}  // namespace unishard::converters::deepspeed
