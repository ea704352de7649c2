#pragma once
// A guess of how tensor-parallel ranks cut their tensors, as a file of rules.
#include "unishard/converters/cut_proposal.hpp"

#include <string>

namespace unishard::cli {

/// Returns a file of rules whose comment says that it is a guess, and what is doubtful.
std::string proposal_text(const converters::CutProposal& proposal, const Path& checkpoint);
/// Returns `{"path", "proposal": {"rules", "cuts"}}`.
Json proposal_json(const converters::CutProposal& proposal, const Path& checkpoint);
/// Returns a sentence that says what to do with it.
std::string proposal_note(const converters::CutProposal& proposal, const Path& checkpoint);

}  // namespace unishard::cli
