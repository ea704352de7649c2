#pragma once
// A guess of how tensor-parallel ranks cut their tensors, for checkpoints that do not say it. It is
// for people to correct: nothing reads a checkpoint by a guess.
#include "unishard/converters/source.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace unishard::converters {

/// Tensors that one pattern means, usually those of all layers.
struct ProposedCut {
  std::string pattern;        ///< a regular expression of their names
  std::size_t tensors = 0;    ///< how many it means
  std::vector<Shape> shards;  ///< shapes of the first of them on the ranks
  std::string cut;            ///< in words: "whole", "dimension 0", ...
  std::string reason;         ///< what told it
  bool is_doubtful = false;   ///< other cuts explain shapes and values as well
};

struct CutProposal {
  Json rules;  ///< as OpenOptions::merge_rules
  std::vector<ProposedCut> cuts;
};

/// Compares the tensors of the ranks, and reads those that are the same on all of them completely.
/// Returns nullopt where the checkpoint is not of such ranks, or says how they cut, and for
/// pipelines and experts.
/// Throws: as open_source() does for damaged files.
std::optional<CutProposal> propose_cuts(Storage& storage, const Path& path,
                                        const std::optional<std::string>& tag);

}  // namespace unishard::converters
