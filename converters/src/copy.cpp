#include "unishard/converters/convert.hpp"
#include "unishard/converters/sink.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>

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

/// Cuts at boundaries of the source, so that neighbours share no chunk of it.
std::vector<Piece> cut(const CopyPlan& plan, const std::vector<Fragment>& fragments,
                       std::uint64_t piece_bytes) {
  const Boundary boundary = [&plan](std::uint32_t tensor, std::uint64_t element) {
    return plan.source->read_boundary(plan.tensor_map[tensor], element);
  };
  // One by one: neighbours may be equal, when a sink wants the same elements in several places.
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    for (const Fragment& part :
         cut_fragments(*plan.target, std::span(&fragments[i], 1), piece_bytes, boundary)) {
      pieces.push_back({i, part.range});
    }
  }
  return pieces;
}

/// The digests of whole tensors from those of their pieces. A tensor that the sink wants in several
/// places has several chains of pieces from its first to its last element; any of them will do.
Digests combine(const Catalog& target, const std::vector<Fragment>& fragments,
                const std::vector<Piece>& pieces, const std::vector<std::uint64_t>& crcs) {
  std::vector<std::size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto place = [&](std::size_t i) {
    return std::tuple(fragments[pieces[i].fragment].tensor, pieces[i].range.begin,
                      ~pieces[i].range.end);
  };
  std::ranges::sort(order, {}, place);
  Digests digests(target.tensors.size());
  std::vector<std::uint64_t> done(target.tensors.size());
  for (const std::size_t i : order) {
    const std::size_t tensor = fragments[pieces[i].fragment].tensor;
    const ElementRange range = pieces[i].range;
    if (range.begin != done[tensor]) continue;
    const std::uint64_t bytes = range.size() * size_of(target.tensors[tensor].dtype);
    digests[tensor] = crc64_combine(digests[tensor].value_or(0), crcs[i], bytes);
    done[tensor] = range.end;
  }
  for (std::size_t t = 0; t < digests.size(); ++t) {
    if (target.tensors[t].elements() == 0) digests[t] = 0;  // of no bytes
    if (done[t] != target.tensors[t].elements()) digests[t].reset();
  }
  return digests;
}

}  // namespace

void copy(const CopyPlan& plan, Sink& sink, const TransferOptions& options, Digests* digests) {
  // A converted piece shares its buffer with its source bytes, which are at most four times as many
  // (float64 to float16).
  const std::uint64_t piece_bytes = check_plan(plan)
                                        ? std::max<std::uint64_t>(options.buffer_bytes / 5, 16)
                                        : options.buffer_bytes;
  const std::vector<Fragment>& fragments = sink.fragments();
  const std::vector<Piece> pieces = cut(plan, fragments, piece_bytes);
  std::vector<std::uint64_t> crcs(digests ? pieces.size() : 0);
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
    if (digests) crcs[index] = crc64(out);
    sink.write(piece.fragment, piece.range, out);
    return std::uint64_t{out.size()};
  });
  if (digests) *digests = combine(*plan.target, fragments, pieces, crcs);
}

}  // namespace unishard::converters
