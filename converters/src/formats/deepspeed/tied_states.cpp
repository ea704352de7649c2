#include "formats/deepspeed/tied_states.hpp"

#include <algorithm>
#include <map>
#include <span>

namespace unishard::converters::deepspeed {
namespace {

/// Returns whether bytes tell anything: those of a state that is all zero do not.
bool is_telling(const std::vector<std::byte>& bytes) {
  return std::ranges::any_of(bytes, [](std::byte b) { return b != std::byte{0}; });
}

using States = std::span<const UnnamedState>;

bool have_shapes(States states, const std::vector<Shape>& layer) {
  return std::ranges::equal(states, layer, {}, &UnnamedState::shape);
}

/// Returns whether `states` are those of the module that `others` are of.
bool are_tied(States states, States others) {
  bool is_equal = false;
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (states[i].shape != others[i].shape) return false;
    is_equal |= is_telling(states[i].first) && states[i].first == others[i].first;
  }
  return is_equal;
}

/// Returns how many of the stage's first states are those of tied modules of an earlier stage.
std::size_t count_tied(States stage, const std::vector<std::vector<UnnamedState>>& earlier,
                       const std::vector<std::vector<Shape>>& layers) {
  std::size_t tied = 0;
  for (bool is_more = true; is_more;) {
    is_more = false;
    for (const std::vector<Shape>& layer : layers) {
      if (layer.empty() || tied + layer.size() > stage.size()) continue;
      const States here = stage.subspan(tied, layer.size());
      if (!have_shapes(here, layer)) continue;
      is_more = std::ranges::any_of(earlier, [&](const std::vector<UnnamedState>& other) {
        return tied + layer.size() <= other.size() &&
               are_tied(here, States(other).subspan(tied, layer.size()));
      });
      if (!is_more) continue;
      tied += layer.size();
      break;
    }
  }
  return tied;
}

/// States by shape.
using Counts = std::map<Shape, std::size_t>;

/// Takes one of a shape. Returns false when there is none.
bool take(Counts& counts, const Shape& shape) {
  const auto found = counts.find(shape);
  if (found == counts.end() || found->second == 0) return false;
  --found->second;
  return true;
}

/// The states of all stages, each tied module's once.
struct CountedStates {
  Counts left;  ///< that no parameter has taken
  Counts tied;  ///< those of later stages, which are in `left` once already
  std::size_t count = 0;
};

CountedStates count_states(const std::vector<std::vector<UnnamedState>>& stages,
                           const std::vector<std::vector<Shape>>& layers) {
  CountedStates counted;
  std::vector<std::vector<UnnamedState>> earlier;
  for (const std::vector<UnnamedState>& stage : stages) {
    const std::size_t tied = count_tied(stage, earlier, layers);
    counted.count += stage.size() - tied;
    for (const UnnamedState& state : States(stage).first(tied)) ++counted.tied[state.shape];
    for (const UnnamedState& state : States(stage).subspan(tied)) ++counted.left[state.shape];
    earlier.push_back(stage);
  }
  return counted;
}

/// Returns the parameters of layers, by shape, that are more than the states.
Counts surplus_of(const std::vector<std::vector<Shape>>& layers, Counts states) {
  Counts surplus;
  for (const std::vector<Shape>& layer : layers) {
    for (const Shape& shape : layer) {
      if (!take(states, shape)) ++surplus[shape];
    }
  }
  return surplus;
}

}  // namespace

StateBalance balance_states(const std::vector<std::vector<UnnamedState>>& stages,
                            const std::vector<std::vector<Shape>>& layers,
                            const std::vector<Shape>& repeated) {
  CountedStates states = count_states(stages, layers);
  StateBalance balance;
  // The stage of a tied module's layers has its states once: nothing but the values tells of them.
  Counts possible = stages.size() > 1 ? states.tied : surplus_of(layers, states.left);
  Counts copies;
  for (const Shape& shape : repeated) {
    if (!take(possible, shape)) continue;
    ++copies[shape];
    balance.copies.push_back(shape);
  }
  std::size_t parameters = 0;
  for (const std::vector<Shape>& layer : layers) {
    for (const Shape& shape : layer) {
      if (take(copies, shape)) continue;
      ++parameters;
      if (!take(states.left, shape)) ++balance.further;
    }
  }
  balance.absent = states.count > parameters ? states.count - parameters : 0;
  return balance;
}

}  // namespace unishard::converters::deepspeed
