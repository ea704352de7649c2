#include "formats/dcp/placements.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace unishard::converters::dcp {
namespace {

constexpr std::size_t kMostRanges = 4096;

std::uint64_t count_of(const HeldIndices& held) {
  std::uint64_t count = 0;
  for (const ElementRange& range : held) count += range.size();
  return count;
}

void append(HeldIndices& held, ElementRange range) {
  if (range.empty()) return;
  if (!held.empty() && held.back().end == range.begin) {
    held.back().end = range.end;
    return;
  }
  if (held.size() >= kMostRanges)
    raise(ErrorCode::Unsupported,
          fmt::format("a part of more than {} ranges of one dimension", kMostRanges));
  held.push_back(range);
}

/// Returns part `index` of `parts`, as torch.chunk cuts: each but the last ones has the same size.
HeldIndices chunk(const HeldIndices& held, std::uint64_t parts, std::uint64_t index) {
  const std::uint64_t count = count_of(held);
  const std::uint64_t size = count / parts + (count % parts != 0 ? 1 : 0);
  // Behind the last element there is nothing, whatever the index.
  const std::uint64_t begin = size == 0 || index > count / size ? count : size * index;
  const std::uint64_t end = std::min(count, begin + size);
  HeldIndices out;
  std::uint64_t at = 0;
  for (const ElementRange& range : held) {
    const ElementRange common = intersect({begin, end}, {at, at + range.size()});
    if (!common.empty())
      append(out, {range.begin + (common.begin - at), range.begin + (common.end - at)});
    at += range.size();
  }
  return out;
}

/// Returns what _StridedShard gives to one rank of `ranks`.
HeldIndices strided_chunk(const HeldIndices& held, std::uint64_t factor, std::uint64_t ranks,
                          std::uint64_t index) {
  HeldIndices out;
  const std::uint64_t filled = std::min(factor, count_of(held));  // the other parts are empty
  for (std::uint64_t i = 0; i < filled; ++i) {
    for (const ElementRange& range : chunk(chunk(held, factor, i), ranks, index))
      append(out, range);
  }
  return out;
}

/// Returns the dimensions of the mesh that split dimension `dim`, in the order in which they do;
/// nullopt when no order has these factors. From right to left, each one comes behind as many of
/// the later dimensions as make its factor.
std::optional<std::vector<std::size_t>> split_order(const MeshPlace& mesh,
                                                    const std::vector<Placement>& placements,
                                                    std::uint64_t dim) {
  std::vector<std::size_t> order;
  for (std::size_t i = placements.size(); i-- > 0;) {
    if (!placements[i].is_sharded || placements[i].dim != dim) continue;
    const std::uint64_t factor = placements[i].split_factor;
    std::uint64_t product = 1;
    std::size_t place = 0;
    while (product < factor && place < order.size()) {
      const std::uint64_t size = mesh.shape[order[place++]];
      if (size > factor / product) return std::nullopt;
      product *= size;
    }
    if (product != factor) return std::nullopt;
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(place), i);
  }
  return order;
}

void check(const Shape& shape, const MeshPlace& mesh, const std::vector<Placement>& placements) {
  if (placements.size() != mesh.shape.size() || mesh.coordinate.size() != mesh.shape.size()) {
    raise(ErrorCode::Corrupt, fmt::format("{} placements on a mesh of {} dimensions",
                                          placements.size(), mesh.shape.size()));
  }
  for (std::size_t i = 0; i < placements.size(); ++i) {
    const Placement& placement = placements[i];
    if (!placement.is_sharded) continue;
    if (placement.dim >= shape.size() || placement.split_factor == 0 || mesh.shape[i] == 0 ||
        mesh.coordinate[i] >= mesh.shape[i])
      raise(ErrorCode::Corrupt, "a shard outside of its mesh or tensor");
  }
}

}  // namespace

std::vector<HeldIndices> held_indices(const Shape& shape, const MeshPlace& mesh,
                                      const std::vector<Placement>& placements) {
  check(shape, mesh, placements);
  std::vector<HeldIndices> held;
  for (std::uint64_t dim = 0; dim < shape.size(); ++dim) {
    HeldIndices indices;
    append(indices, {0, shape[dim]});
    if (const auto order = split_order(mesh, placements, dim)) {
      for (const std::size_t i : *order)
        indices = chunk(indices, mesh.shape[i], mesh.coordinate[i]);
    } else {
      for (std::size_t i = 0; i < placements.size(); ++i) {
        if (!placements[i].is_sharded || placements[i].dim != dim) continue;
        indices =
            strided_chunk(indices, placements[i].split_factor, mesh.shape[i], mesh.coordinate[i]);
      }
    }
    held.push_back(std::move(indices));
  }
  return held;
}

}  // namespace unishard::converters::dcp
