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

}  // namespace

StateBalance balance_states(const std::vector<std::vector<UnnamedState>>& stages,
                            const std::vector<std::vector<Shape>>& layers) {
  std::size_t states = 0, parameters = 0;
  std::map<Shape, std::size_t> left;  // states that no parameter has taken
  std::vector<std::vector<UnnamedState>> earlier;
  for (const std::vector<UnnamedState>& stage : stages) {
    const std::size_t tied = count_tied(stage, earlier, layers);
    states += stage.size() - tied;
    for (const UnnamedState& state : States(stage).subspan(tied)) ++left[state.shape];
    earlier.push_back(stage);
  }
  StateBalance balance;
  for (const std::vector<Shape>& layer : layers) {
    parameters += layer.size();
    for (const Shape& shape : layer) {
      std::size_t& count = left[shape];
      if (count == 0)
        ++balance.further;
      else
        --count;
    }
  }
  balance.absent = states > parameters ? states - parameters : 0;
  return balance;
}

}  // namespace unishard::converters::deepspeed
