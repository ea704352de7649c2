#include "state/unit_arrays.hpp"

#include <algorithm>

namespace unishard::trainer::detail {

bool UnitArrays::can_be_drafted() const {
  const auto are_all = [this](bool (StateArray::*are)() const) {
    return (master.*are)() && std::ranges::all_of(states, are);
  };
  return are_all(&StateArray::is_in_file) || are_all(&StateArray::is_pinned);
}

std::vector<StateArray> UnitArrays::drafted() const {
  if (!can_be_drafted()) return {};
  std::vector<StateArray> arrays{master};
  arrays.insert(arrays.end(), states.begin(), states.end());
  if (rounded.is_in_file()) arrays.push_back(rounded);
  return arrays;
}

UnitArrays UnitArrays::make_spare(at::Device device) const {
  const auto make = [device](const StateArray& like) {
    return StateArray::pinned(like.elements(), like.type(), device);
  };
  UnitArrays spare{.master = make(master)};
  for (const StateArray& state : states) spare.states.push_back(make(state));
  return spare;
}

UnitArrays UnitArrays::draft(const UnitArrays& spare) const {
  UnitArrays copy{.gradients = gradients, .stored = stored};
  if (rounded.is_in_file()) copy.rounded = rounded.snapshot();
  if (master.is_pinned()) {
    copy.master = spare.master;
    copy.states = spare.states;
    copy.previous = states;
    copy.previous.insert(copy.previous.begin(), master);
  } else {
    copy.master = master.snapshot();
    for (const StateArray& state : states) copy.states.push_back(state.snapshot());
  }
  return copy;
}

void UnitArrays::take(const UnitArrays& draft) const {
  master.take(draft.master);
  for (std::size_t i = 0; i < states.size(); ++i) states[i].take(draft.states[i]);
  if (rounded.is_in_file()) rounded.take(draft.rounded);
}

void UnitArrays::round(std::int64_t begin, const at::Tensor& values) const {
  if (rounded.defined()) rounded.write(begin, values.to(stored));
}

}  // namespace unishard::trainer::detail
