#pragma once
// What a verb does about things that the files hold and the catalog does not. It depends on the
// role of the thing and on what the verb wants, never on text.
#include "unishard/converters/loss.hpp"
#include "unishard/converters/source.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace unishard::tools {

/// What a verb makes of a checkpoint.
enum class Wanted : std::uint8_t {
  Model,       ///< weights and buffers only
  Everything,  ///< a state from which training goes on
};

enum class LossEffect : std::uint8_t {
  None,   ///< the result would not have it in any case
  Note,   ///< the user is told
  Error,  ///< the result is not made, unless the user allows it
};

/// Which losses matter to one job.
struct LossRules {
  Wanted wanted = Wanted::Everything;
  bool excludes_frozen = false;        ///< frozen parameters are not wanted
  std::vector<std::string> only = {};  ///< shell patterns of names; empty takes all
  bool allows_missing = false;         ///< what would be an error is counted and named
};

/// Returns true for a weight that the catalog does not have, not even as a value.
bool is_unread_weight(const converters::Loss& loss);

LossEffect effect_of(const converters::Loss& loss, const LossRules& rules);

/// Returns the losses that must be named: those that are missing although they are wanted first.
/// Throws: Unsupported, naming them, when there are such and the rules do not allow them. `where`
/// is the checkpoint.
converters::Losses losses_to_name(const converters::Losses& losses, const LossRules& rules,
                                  const std::string& where);

/// Returns the number of losses that are errors by the rules.
std::size_t count_missing(const converters::Losses& losses, const LossRules& rules);

/// Returns the losses for JSON reports: [{"role", "name", "why", "shape"}].
Json losses_json(const converters::Losses& losses);

}  // namespace unishard::tools
