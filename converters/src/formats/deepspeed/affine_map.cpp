#include "formats/deepspeed/affine_map.hpp"

#include "unishard/format/error.hpp"

#include "formats/deepspeed/layout.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace unishard::converters::deepspeed {
namespace {

constexpr std::int64_t kVersion = 1;
/// Upper bound on the pieces of one rank. Real maps have a few.
constexpr std::size_t kPieces = 1u << 14;

[[noreturn]] void raise_corrupt(const std::string& what, std::string_view problem) {
  raise(ErrorCode::Corrupt, fmt::format("{}: affine_map: {}", what, problem));
}

/// The offset and strides of one side of a piece.
struct View {
  std::uint64_t offset = 0;
  Shape strides;
};
View view_of(Value value, const std::string& what) {
  if (!value.is_sequence() || value.size() != 2)
    raise_corrupt(what, "source and dest of a piece are an offset and strides");
  return {value[0].unsigned_int(), shape_of(value[1])};
}

Box require_box(const Shape& shape, const Shape& sizes, const View& view, const std::string& what) {
  if (auto box = box_of(shape, sizes, view.strides, view.offset)) return *std::move(box);
  raise(ErrorCode::Unsupported,
        fmt::format("{}: affine_map: a piece of sizes ({}) with the strides ({}) at element {} is "
                    "no box of a tensor of size ({})",
                    what, fmt::join(sizes, ", "), fmt::join(view.strides, ", "), view.offset,
                    fmt::join(shape, ", ")),
        kMergeRanks);
}

void check_scale(Value piece, const std::string& what) {
  const auto scale = present(piece, "scale");
  if (!scale || scale->real() == 1.0) return;
  raise(ErrorCode::Unsupported,
        fmt::format("{}: affine_map: the shards hold it scaled by {}; the moments and settings of "
                    "the optimizer have no meaning without the scale",
                    what, scale->real()));
}

/// The ranks that have a piece, as its `locations` say.
struct Claim {
  Box whole;
  std::vector<std::uint64_t> ranks;
};

std::vector<std::uint64_t> sorted_numbers(Value list, const CutContext& context) {
  if (list.size() > context.shards.size())
    raise_corrupt(context.what, "a piece has more locations than there are ranks");
  std::vector<std::uint64_t> numbers;
  for (std::size_t i = 0; i < list.size(); ++i) numbers.push_back(list[i].unsigned_int());
  std::ranges::sort(numbers);
  return numbers;
}

/// Reads the pieces of one rank.
void read_rank(Value entry, std::uint32_t rank, const Shape& shape, const CutContext& context,
               CutBuilder& builder, std::vector<Claim>& claims) {
  const std::string& what = context.what;
  const Shape& shard = context.shards[rank];
  const Shape described = shape_of(entry.at("shard_shape"));
  if (described != shard) {
    raise_corrupt(what, fmt::format("it gives rank {} the shape ({}), and the rank's files ({})",
                                    rank, fmt::join(described, ", "), fmt::join(shard, ", ")));
  }
  const Value pieces = entry.at("pieces");
  if (pieces.size() > kPieces)
    raise_corrupt(what, fmt::format("rank {} has {} pieces", rank, pieces.size()));
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    check_scale(pieces[i], what);
    const Shape sizes = shape_of(pieces[i].at("shape"));
    Box whole = require_box(shape, sizes, view_of(pieces[i].at("source"), what), what);
    Box part = require_box(shard, sizes, view_of(pieces[i].at("dest"), what), what);
    claims.push_back({whole, sorted_numbers(pieces[i].at("locations"), context)});
    builder.add(rank, std::move(whole), std::move(part.offsets));
  }
}

/// A reader that trusted wrong locations would miss a copy.
void check_locations(const TensorCut& cut, const std::vector<Claim>& claims,
                     const std::string& what) {
  std::map<std::pair<Shape, Shape>, std::vector<std::uint64_t>> holders;
  for (const SharedBox& box : cut.boxes) {
    auto& ranks = holders[{box.whole.offsets, box.whole.sizes}];
    for (const SharedBox::Copy& copy : box.copies) ranks.push_back(copy.shard);
    std::ranges::sort(ranks);
  }
  for (const Claim& claim : claims) {
    const auto found = holders.find({claim.whole.offsets, claim.whole.sizes});
    if (found == holders.end() || found->second == claim.ranks) continue;  // an empty piece
    raise_corrupt(what, fmt::format("the piece at ({}) is said to be on the ranks {}, and is on {}",
                                    fmt::join(claim.whole.offsets, ", "),
                                    fmt::join(claim.ranks, ", "), fmt::join(found->second, ", ")));
  }
}

}  // namespace

AffineMap::AffineMap(Value map) {
  if (const auto version = present(map, "version"); version && version->integer() != kVersion) {
    raise(ErrorCode::Unsupported,
          fmt::format("affine_map of universal_checkpoint_info has version {}; version {} is read",
                      version->integer(), kVersion),
          "make a universal checkpoint with the ds_to_universal of the DeepSpeed that saved it");
  }
  const Value params = map.at("params");
  for (std::size_t i = 0; i < params.pair_count(); ++i) {
    patterns_.add(params.key(i).string(), entries_.size());
    entries_.push_back(params.value(i));
  }
}

std::optional<TensorCut> AffineMap::cut_of(const std::string& fqn,
                                           const CutContext& context) const {
  const auto& [shards, what, memory] = context;
  const std::vector<std::size_t> found = patterns_.find(fqn);
  if (found.empty()) return std::nullopt;
  if (found.size() > 1) raise_corrupt(what, "it describes the parameter twice");
  const Value entry = entries_[found.front()];
  const Shape shape = shape_of(entry.at("logical_shape"));
  const Value ranks = entry.at("ranks");
  std::vector<std::optional<Value>> of_rank(shards.size());
  for (std::size_t i = 0; i < ranks.pair_count(); ++i) {
    const std::uint64_t rank = ranks.key(i).unsigned_int();
    if (rank >= shards.size() || of_rank[rank]) {
      raise_corrupt(what,
                    fmt::format("it names rank {}, and there are {} ranks", rank, shards.size()));
    }
    of_rank[rank] = ranks.value(i);
  }
  CutBuilder builder(shape, context);
  std::vector<Claim> claims;
  for (std::uint32_t rank = 0; rank < shards.size(); ++rank) {
    if (!of_rank[rank]) raise_corrupt(what, fmt::format("it lacks rank {}", rank));
    read_rank(*of_rank[rank], rank, shape, context, builder, claims);
  }
  TensorCut cut = builder.finish();
  check_locations(cut, claims, what);
  return cut;
}

}  // namespace unishard::converters::deepspeed
