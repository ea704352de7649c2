#include "views/proposal_view.hpp"

#include "workflows/rules_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace unishard::cli {
namespace {

using converters::CutProposal;
using converters::ProposedCut;

std::string shapes_text(const std::vector<Shape>& shards) {
  std::string text = fmt::format("[{}]", fmt::join(shards.front(), ", "));
  const bool are_alike =
      std::ranges::all_of(shards, [&](const Shape& shape) { return shape == shards.front(); });
  if (are_alike) return fmt::format("{} on each of {} ranks", text, shards.size());
  for (std::size_t r = 1; r < shards.size(); ++r)
    text += fmt::format(" [{}]", fmt::join(shards[r], ", "));
  return text;
}

std::string describe_cut(const ProposedCut& cut) {
  return fmt::format("{}: {} {}, {}: {}; {}", cut.pattern, cut.tensors,
                     cut.tensors == 1 ? "tensor" : "tensors", shapes_text(cut.shards), cut.cut,
                     cut.reason);
}

Json proposed_rules(const CutProposal& proposal, const Path& checkpoint) {
  std::vector<std::string> comment = {fmt::format(
      "A guess of `unishard inspect --layout` from shapes and values in {}, whose files "
      "do not say how tensor-parallel ranks cut the tensors. Look at it before you "
      "give it to --merge-rules.",
      checkpoint.string())};
  for (const bool is_doubtful : {true, false}) {
    for (const ProposedCut& cut : proposal.cuts) {
      if (cut.is_doubtful == is_doubtful)
        comment.push_back((is_doubtful ? "doubtful: " : "") + describe_cut(cut));
    }
  }
  return tools::rules_json({.cuts = proposal.rules}, comment);
}

}  // namespace

std::string proposal_text(const CutProposal& proposal, const Path& checkpoint) {
  constexpr int kIndent = 2;
  return proposed_rules(proposal, checkpoint).dump(kIndent, ' ', true) + "\n";
}

Json proposal_json(const CutProposal& proposal, const Path& checkpoint) {
  Json cuts = Json::array();
  for (const ProposedCut& cut : proposal.cuts) {
    cuts.push_back({{"pattern", cut.pattern},
                    {"tensors", cut.tensors},
                    {"shards", cut.shards},
                    {"cut", cut.cut},
                    {"reason", cut.reason},
                    {"doubtful", cut.is_doubtful}});
  }
  return {
      {"path", checkpoint.string()},
      {"proposal", {{"rules", proposed_rules(proposal, checkpoint)}, {"cuts", std::move(cuts)}}}};
}

std::string proposal_note(const CutProposal& proposal, const Path& checkpoint) {
  const auto doubtful = std::ranges::count_if(proposal.cuts, &ProposedCut::is_doubtful);
  return fmt::format(
      "{}: no file says how tensor-parallel ranks cut the tensors. These rules are a guess, {} of "
      "{} patterns are doubtful, and nothing uses them until you give them as --merge-rules FILE",
      checkpoint.string(), doubtful, proposal.cuts.size());
}

}  // namespace unishard::cli
