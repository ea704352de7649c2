#pragma once
// Puts the tensors of the ranks of a tensor-parallel run together.
#include "unishard/converters/source.hpp"

#include "formats/deepspeed/cut_rules.hpp"
#include "formats/deepspeed/rank_reader.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::deepspeed {

/// The parts of a model in the order of the tensor-parallel ranks.
struct CutParts {
  std::vector<std::unique_ptr<Source>> sources = {};
  std::vector<std::string> names = {};  ///< their files, for messages
  std::string format = {};              ///< of the result
  std::uint64_t world_size = 1;
  bool has_states = true;          ///< false: weights and buffers only, without groups
  std::string_view left_out = {};  ///< the end of names of tensors that are not put together
};

/// Returns whether the tensor is weights or a buffer, and no state of an optimizer.
bool is_of_model(const TensorInfo& tensor);

/// Returns whether `bytes` are `value` many times.
/// Pre: `value` is not empty, and its size divides that of `bytes`.
bool repeats(std::span<const std::byte> bytes, std::span<const std::byte> value);

/// Returns a source of the whole tensors. Adds to `notes` what is left out.
/// Throws: as join_ranks() does.
std::unique_ptr<Source> join_parts(CutParts parts, CutRules& rules, const std::string& where,
                                   Notes& notes);

/// Returns the parts that the tensor-parallel ranks of DeepSpeed have.
/// Throws: Corrupt when the ranks are of different saves.
CutParts parts_of(std::vector<RankContent> ranks);

/// Puts them together.
/// Throws: Corrupt when the ranks contradict each other, or a rule the tensors; Unsupported for a
/// rule that is not read.
std::unique_ptr<Source> join_ranks(std::vector<RankContent> ranks, CutRules& rules,
                                   const std::string& where, Notes& notes);

/// Opens the tensor-parallel ranks of a DeepSpeed folder of which no file says how they cut the
/// tensors. Returns nullopt for every other one, and for pipelines and experts.
std::optional<CutParts> open_silent_ranks(Storage& storage, const Path& path,
                                          const std::optional<std::string>& tag);

}  // namespace unishard::converters::deepspeed
