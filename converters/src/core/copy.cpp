#include "unishard/converters/dtype_cast.hpp"
#include "unishard/converters/sink.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

namespace unishard::converters {
namespace {

/// A range that fits a buffer, and the sink's fragment that it is a part of.
struct Piece {
  std::size_t fragment = 0;
  ElementRange range;
};

/// Refuses a plan that copy() cannot carry out, before any byte is written. Returns true when a
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

/// Cuts at boundaries of the source, so that no two pieces share a chunk of the source.
std::vector<Piece> cut(const CopyPlan& plan, const std::vector<Fragment>& fragments,
                       std::uint64_t piece_bytes) {
  const Boundary boundary = [&plan](std::uint32_t tensor, std::uint64_t element) {
    return plan.source->read_boundary(plan.tensor_map[tensor], element);
  };
  // Fragments are cut one by one, because a sink may request the same elements in several
  // fragments.
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    for (const Fragment& part :
         cut_fragments(*plan.target, std::span(&fragments[i], 1), piece_bytes, boundary)) {
      pieces.push_back({i, part.range});
    }
  }
  return pieces;
}

/// Returns the digest of each fragment. Its pieces lie in order.
std::vector<PartDigest> combine(const Catalog& target, const std::vector<Fragment>& fragments,
                                const std::vector<Piece>& pieces,
                                const std::vector<std::uint64_t>& crcs) {
  std::vector<PartDigest> digests;
  digests.reserve(fragments.size());
  for (const Fragment& fragment : fragments) digests.push_back({fragment, 0});
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    PartDigest& whole = digests[pieces[i].fragment];
    const DType dtype = target.tensors[whole.part.tensor].dtype;
    whole.crc64 = crc64_combine(whole.crc64, crcs[i], pieces[i].range.size() * size_of(dtype));
  }
  return digests;
}

}  // namespace

Digests whole_digests(const Catalog& catalog, std::vector<PartDigest> parts) {
  std::ranges::sort(parts, {}, [](const PartDigest& digest) {
    return std::tuple(digest.part.tensor, digest.part.range.begin, ~digest.part.range.end);
  });
  Digests digests(catalog.tensors.size());
  std::vector<std::uint64_t> done(catalog.tensors.size());
  for (const auto& [part, crc] : parts) {
    if (part.range.begin != done.at(part.tensor)) continue;
    const std::uint64_t bytes = part.range.size() * size_of(catalog.tensors[part.tensor].dtype);
    digests[part.tensor] = crc64_combine(digests[part.tensor].value_or(0), crc, bytes);
    done[part.tensor] = part.range.end;
  }
  for (std::size_t t = 0; t < digests.size(); ++t) {
    if (catalog.tensors[t].elements() == 0) digests[t] = 0;  // of no bytes
    if (done[t] != catalog.tensors[t].elements()) digests[t].reset();
  }
  return digests;
}

CopyResult copy(const CopyPlan& plan, Sink& sink, const TransferOptions& options,
                WantDigests wants_digests) {
  const bool wants = wants_digests == WantDigests::Yes;
  // A converted piece shares its buffer with its source bytes, which are at most four times as many
  // (float64 to float16).
  const std::uint64_t piece_bytes = check_plan(plan)
                                        ? std::max<std::uint64_t>(options.buffer_bytes / 5, 16)
                                        : options.buffer_bytes;
  const std::vector<Fragment>& fragments = sink.fragments();
  const std::vector<Piece> pieces = cut(plan, fragments, piece_bytes);
  std::vector<std::uint64_t> crcs(wants ? pieces.size() : 0);
  std::vector<std::uint8_t> has_overflow(pieces.size());
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
      has_overflow[index] = convert_elements(from, in, to, out) ? 1 : 0;
    }
    if (wants) crcs[index] = crc64(out);
    sink.write(piece.fragment, piece.range, out);
    return std::uint64_t{out.size()};
  });
  CopyResult result;
  if (wants) result.digests = combine(*plan.target, fragments, pieces, crcs);
  std::set<std::size_t> overflowed;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (has_overflow[i] != 0) overflowed.insert(fragments[pieces[i].fragment].tensor);
  }
  result.overflowed.assign(overflowed.begin(), overflowed.end());
  return result;
}

}  // namespace unishard::converters
