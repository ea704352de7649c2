#include "unishard/converters/convert.hpp"
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard::converters {
namespace {

/// A piece that fits a buffer, and the sink's fragment that it is a part of.
struct Piece {
  std::size_t fragment = 0;
  ElementRange range;
};

/// Refuses a plan that copy() cannot carry out, before any byte is written; returns whether any
/// tensor changes its type.
bool check_plan(const CopyPlan& plan) {
  const auto& from = plan.source->catalog().tensors;
  const auto& to = plan.target->tensors;
  if (plan.tensor_map.size() != to.size()) {
    raise(ErrorCode::Internal, "copy: the tensor map does not have one entry per target tensor");
  }
  bool converts = false;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const TensorInfo& source = from.at(plan.tensor_map[i]);
    if (source.shape != to[i].shape) {
      raise(ErrorCode::Mismatch,
            fmt::format("{}: the shape differs between source and target", to[i].label()));
    }
    if (!convertible(source.dtype, to[i].dtype)) {
      raise(ErrorCode::Unsupported, fmt::format("{}: cannot convert {} to {}", to[i].label(),
                                                name_of(source.dtype), name_of(to[i].dtype)));
    }
    converts |= source.dtype != to[i].dtype;
  }
  return converts;
}

std::vector<Piece> cut(const Catalog& target, const std::vector<Fragment>& fragments,
                       std::uint64_t piece_bytes) {
  // One by one: neighbours may be equal, when a sink wants the same elements in several places.
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    for (const Fragment& part : cut_fragments(target, std::span(&fragments[i], 1), piece_bytes)) {
      pieces.push_back({i, part.range});
    }
  }
  return pieces;
}

}  // namespace

void copy(const CopyPlan& plan, Sink& sink, const TransferOptions& options) {
  // A converted piece shares its buffer with its source bytes, which are at most four times as many
  // (float64 to float16).
  const std::uint64_t piece_bytes = check_plan(plan)
                                        ? std::max<std::uint64_t>(options.buffer_bytes / 5, 16)
                                        : options.buffer_bytes;
  const std::vector<Fragment>& fragments = sink.fragments();
  const std::vector<Piece> pieces = cut(*plan.target, fragments, piece_bytes);
  run_bounded(pieces.size(), options, [&](std::size_t index, std::span<std::byte> buffer) {
    const Piece& piece = pieces[index];
    const std::size_t tensor = fragments[piece.fragment].tensor;
    const std::size_t source_tensor = plan.tensor_map[tensor];
    const DType from = plan.source->catalog().tensors[source_tensor].dtype;
    const DType to = plan.target->tensors[tensor].dtype;
    const std::span<std::byte> out = buffer.first(piece.range.size() * size_of(to));
    if (from == to) {
      plan.source->read(source_tensor, piece.range, out);
    } else {
      const auto in = buffer.subspan(out.size(), piece.range.size() * size_of(from));
      plan.source->read(source_tensor, piece.range, in);
      convert_elements(from, in, to, out);
    }
    sink.write(piece.fragment, piece.range, out);
    return std::uint64_t{out.size()};
  });
}

}  // namespace unishard::converters
