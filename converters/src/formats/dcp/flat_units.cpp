// The search goes through the tree of modules from the leaves to the root. For each module it asks
// once whether the module can be a unit. To answer, it walks through the module and keeps all
// states that the flat parameter can be in: how many elements it has so far, and between which
// bounds the size of a rank's part is, as far as the pieces tell. An inner module that can be a
// unit may be left out of the flat parameter. In the end the size of the flat parameter has to give
// a part within the bounds.
#include "formats/dcp/flat_units.hpp"

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

namespace unishard::converters::dcp {
namespace {

/// Upper bounds on the elements of a flat parameter and on the levels of modules.
constexpr std::uint64_t kMostFlatElements = std::uint64_t{1} << 60;
constexpr std::size_t kMostModuleLevels = 64;
/// How many states are kept at a time. Few are enough for most models, however large these are.
constexpr std::array<std::size_t, 3> kMostFlatStates = {2, 8, 256};

/// Alignments in elements of 2, 4 and 8 bytes. A model may have units of several: batch norms are
/// kept in float32. A version of torch aligns all units or none.
constexpr std::array<std::uint64_t, 3> kAligned = {8, 4, 2};
constexpr std::array<std::uint64_t, 1> kUnaligned = {1};

/// What is known of a flat parameter whose first `elements` elements are laid out.
struct FlatState {
  std::uint64_t elements = 0;
  std::uint64_t min_part = 1;  ///< elements of a rank
  std::uint64_t max_part = std::numeric_limits<std::uint64_t>::max();

  auto operator<=>(const FlatState&) const = default;
};

/// The pieces of a parameter. All ranks between the first and the last hold a whole part.
struct FlatCut {
  std::uint64_t first_rank = 0, last_rank = 0;
  std::uint64_t first = 0, last = 0;  ///< elements on these ranks
  std::optional<std::uint64_t> part;  ///< elements on the ranks between them
};

std::uint64_t ceil_divide(std::uint64_t value, std::uint64_t by) {
  return value / by + (value % by != 0 ? 1 : 0);
}

/// Returns nullopt when no range of elements is cut like this.
std::optional<FlatCut> cut_of(const UnitParameter& parameter, std::uint64_t ranks) {
  const std::vector<RankPiece>& pieces = parameter.pieces;
  FlatCut cut{pieces.front().rank, pieces.back().rank, pieces.front().elements,
              pieces.back().elements, std::nullopt};
  std::uint64_t left = parameter.elements;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const RankPiece& piece = pieces[i];
    if (piece.rank != cut.first_rank + i || piece.elements == 0 || piece.elements > left)
      return std::nullopt;
    left -= piece.elements;
    if (i == 0 || i + 1 == pieces.size()) continue;
    if (cut.part.value_or(piece.elements) != piece.elements) return std::nullopt;
    cut.part = piece.elements;
  }
  if (left != 0 || cut.last_rank >= ranks) return std::nullopt;
  return cut;
}

/// Returns the state behind `elements` elements that begin at `begin` and are cut like this;
/// nullopt when they cannot be.
std::optional<FlatState> behind(FlatState state, std::uint64_t begin, std::uint64_t elements,
                                const FlatCut& cut) {
  const std::uint64_t ranks_up_to_first = cut.first_rank + 1;
  state.elements = begin + elements;
  if (cut.first_rank == cut.last_rank) {
    state.min_part = std::max(state.min_part, ceil_divide(state.elements, ranks_up_to_first));
    if (cut.first_rank > 0) state.max_part = std::min(state.max_part, begin / cut.first_rank);
  } else {  // the first rank's part ends in this parameter
    const std::uint64_t part = (begin + cut.first) / ranks_up_to_first;
    if ((begin + cut.first) % ranks_up_to_first != 0 || cut.part.value_or(part) != part ||
        std::max(cut.first, cut.last) > part)
      return std::nullopt;
    state.min_part = std::max(state.min_part, part);
    state.max_part = std::min(state.max_part, part);
  }
  if (state.min_part > state.max_part) return std::nullopt;
  return state;
}

enum class StepKind { Enter, Leave, Parameter };
struct UnitStep {
  StepKind kind = StepKind::Parameter;
  std::size_t index = 0;  ///< of the module or parameter
};

struct UnitModule {
  std::size_t begin = 0, end = 0;  ///< its steps: behind the one that enters, the one that leaves
  bool has_pieces = false;
  bool can_be_unit = false;
};

/// The walk through all modules of a model, of which the first is the model itself.
struct ModuleWalk {
  std::vector<UnitStep> steps;
  std::vector<UnitModule> modules;
  std::vector<std::size_t> leaves;  ///< modules, inner ones first
};

class ModuleWalkBuilder {
 public:
  /// Returns nullopt when the modules have too many levels.
  static std::optional<ModuleWalk> build(const std::vector<UnitParameter>& model) {
    ModuleWalkBuilder builder;
    builder.enter({});
    for (std::size_t i = 0; i < model.size(); ++i) {
      if (!builder.go_to(model[i].name)) return std::nullopt;
      builder.walk_.steps.push_back({StepKind::Parameter, i});
      if (model[i].pieces.empty()) continue;
      for (const Open& open : builder.open_) builder.walk_.modules[open.module].has_pieces = true;
    }
    while (!builder.open_.empty()) builder.leave();
    return std::move(builder.walk_);
  }

 private:
  struct Open {
    std::string_view name;
    std::size_t module = 0;
  };

  void enter(std::string_view name) {
    open_.push_back({name, walk_.modules.size()});
    walk_.steps.push_back({StepKind::Enter, walk_.modules.size()});
    walk_.modules.push_back({.begin = walk_.steps.size()});
  }

  void leave() {
    const std::size_t module = open_.back().module;
    walk_.modules[module].end = walk_.steps.size();
    walk_.steps.push_back({StepKind::Leave, module});
    walk_.leaves.push_back(module);
    open_.pop_back();
  }

  /// Leaves and enters modules up to that of the parameter `name`.
  bool go_to(std::string_view name) {
    std::size_t level = 1;
    for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.')) {
      const std::string_view module = name.substr(0, dot);
      name.remove_prefix(dot + 1);
      if (level == open_.size() || open_[level].name != module) {
        while (open_.size() > level) leave();
        if (level == kMostModuleLevels) return false;
        enter(module);
      }
      ++level;
    }
    while (open_.size() > level) leave();
    return true;
  }

  ModuleWalk walk_;
  std::vector<Open> open_;
};

/// The states that one flat parameter may be in. The first are those in which most inner modules
/// are units, the last those in which the flat parameter holds most.
using FlatStates = std::vector<FlatState>;

class FlatUnitSearch {
 public:
  FlatUnitSearch(const std::vector<UnitParameter>& model, std::vector<std::optional<FlatCut>> cuts,
                 std::uint64_t ranks, ModuleWalk walk, std::uint64_t most_steps)
      : model_(model),
        cuts_(std::move(cuts)),
        ranks_(ranks),
        walk_(std::move(walk)),
        steps_left_(most_steps) {}

  FlatUnits run() {
    for (const std::size_t most_states : kMostFlatStates) {
      most_states_ = most_states;
      is_cut_short_ = false;
      if (can_be_units(kAligned) || can_be_units(kUnaligned)) return FlatUnits::Exist;
      if (!is_cut_short_) return FlatUnits::Missing;
    }
    return FlatUnits::Undecided;
  }

 private:
  /// Returns whether the whole model can consist of units.
  bool can_be_units(std::span<const std::uint64_t> alignments) {
    for (const std::size_t index : walk_.leaves) {
      UnitModule& module = walk_.modules[index];
      module.can_be_unit = !module.has_pieces || std::ranges::any_of(alignments, [&](auto each) {
        return can_be_unit(module, each);
      });
    }
    return walk_.modules.front().can_be_unit;
  }

  bool can_be_unit(const UnitModule& module, std::uint64_t alignment) {
    return std::ranges::any_of(states_behind(module, alignment), [&](const FlatState& state) {
      const std::uint64_t part = ceil_divide(state.elements, ranks_);
      return state.elements == 0 || (state.min_part <= part && part <= state.max_part);
    });
  }

  /// Returns the states of the module's flat parameter behind all its parameters.
  FlatStates states_behind(const UnitModule& module, std::uint64_t alignment) {
    struct Skipped {
      std::size_t module = 0;
      FlatStates states;  ///< in which it is a unit of its own
    };
    std::vector<Skipped> skipped;
    FlatStates states(1);
    for (std::size_t i = module.begin; i < module.end; ++i) {
      if (states.empty()) {
        if (skipped.empty()) return {};
        i = walk_.modules[skipped.back().module].end;
      }
      if (!spend(1 + states.size())) return {};
      const UnitStep& step = walk_.steps[i];
      if (step.kind == StepKind::Parameter) {
        states = states_with(states, step.index, alignment);
      } else if (walk_.modules[step.index].can_be_unit) {
        if (step.kind == StepKind::Enter) {
          skipped.push_back({step.index, states});
        } else {
          states = joined(std::move(skipped.back().states), states);
          skipped.pop_back();
        }
      }
    }
    return states;
  }

  /// Returns the states behind a parameter.
  FlatStates states_with(const FlatStates& before, std::size_t index, std::uint64_t alignment) {
    FlatStates behind_it;
    const std::uint64_t elements = model_[index].elements;
    for (FlatState state : before) {
      const std::uint64_t begin = ceil_divide(state.elements, alignment) * alignment;
      if (elements > kMostFlatElements || begin > kMostFlatElements - elements) continue;
      if (const auto& cut = cuts_[index]) {
        if (const auto next = behind(state, begin, elements, *cut)) behind_it.push_back(*next);
      } else {
        state.elements = begin + elements;
        behind_it.push_back(state);
      }
    }
    return cuts_[index] ? behind_it : joined(before, behind_it);
  }

  /// Returns the states of both, each once. Of too many, those in the middle are left out.
  FlatStates joined(FlatStates first, const FlatStates& second) {
    std::set<FlatState> known(first.begin(), first.end());
    for (const FlatState& state : second) {
      if (known.insert(state).second) first.push_back(state);
    }
    if (first.size() > most_states_) {
      is_cut_short_ = true;
      const auto half = static_cast<std::ptrdiff_t>(most_states_ / 2);
      first.erase(first.begin() + half, first.end() - half);
    }
    return first;
  }

  /// Returns false when the steps are used up.
  bool spend(std::uint64_t steps) {
    const bool is_enough = steps <= steps_left_;
    steps_left_ = is_enough ? steps_left_ - steps : 0;
    if (!is_enough) is_cut_short_ = true;
    return is_enough;
  }

  const std::vector<UnitParameter>& model_;
  std::vector<std::optional<FlatCut>> cuts_;  // of the parameters that have pieces
  std::uint64_t ranks_;
  ModuleWalk walk_;
  std::uint64_t steps_left_;
  std::size_t most_states_ = 0;
  bool is_cut_short_ = false;
};

}  // namespace

FlatUnits find_flat_units(const std::vector<UnitParameter>& model, std::uint64_t ranks,
                          std::uint64_t most_steps) {
  std::vector<std::optional<FlatCut>> cuts(model.size());
  for (std::size_t i = 0; i < model.size(); ++i) {
    if (model[i].pieces.empty()) continue;
    cuts[i] = cut_of(model[i], ranks);
    if (!cuts[i]) return FlatUnits::Missing;
  }
  auto walk = ModuleWalkBuilder::build(model);
  if (!walk) return FlatUnits::Undecided;
  return FlatUnitSearch(model, std::move(cuts), ranks, *std::move(walk), most_steps).run();
}

}  // namespace unishard::converters::dcp
