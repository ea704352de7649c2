#pragma once
// The names of nanotron's files, and what they and the metadata in them say about a rank's part of
// a tensor. Source: nanotron 0.4, serialize/utils (get_path), serialize/optimizer
// (optimizer_filename), parallel/parameters (SlicesPair), serialize/metadata (TensorMetadata).
// Thread safety: pure functions.
#include "containers/boxes.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::dcp::nanotron {

struct RankOf {
  std::uint64_t rank = 0, ranks = 1;
};
/// The ranks of a process by kind of parallelism: "pp", "dp", "tp", "exp".
using Ranks = std::map<std::string, RankOf, std::less<>>;

/// Returns the rank of a kind that the name lacks as the only one of one.
RankOf rank_in(const Ranks& ranks, std::string_view kind);

/// Parses "pp-rank-0-of-2_tp-rank-1-of-2", with or without "rank-". Returns nullopt for every other
/// text.
std::optional<Ranks> parse_ranks(std::string_view text);

/// `model_<tensor>[_<ranks>].safetensors`
struct TensorFileName {
  std::string tensor;
  std::optional<Ranks> ranks;  ///< nullopt: the file has the whole tensor
};
std::optional<TensorFileName> parse_tensor_file(std::string_view name);

/// `<kind>_<ranks>.pt`; nullopt for every other name.
std::optional<Ranks> parse_rank_file(std::string_view kind, std::string_view name);

/// A box of a rank's tensor, and where it lies in the whole.
struct CutBox {
  Box local, whole;
};

/// Parses the texts of local_global_slices_pairs ("None,None,None|0,4,None#...") and
/// unsharded_shape for a rank's tensor of shape `local`. Returns the boxes, and the whole shape.
/// Throws: Corrupt for other texts, and for boxes that are not inside the tensors or not of one
/// size; Unsupported for steps.
std::vector<CutBox> parse_slices(std::string_view pairs, const Shape& local, const Shape& whole);
/// Parses "(64, 32)", also with "np.int64(64)" for a number.
/// Throws: Corrupt.
Shape parse_shape(std::string_view text);

}  // namespace unishard::converters::dcp::nanotron
