#include "state/unit_arrays.hpp"

#include <algorithm>

namespace unishard::trainer::detail {

bool UnitArrays::can_be_drafted() const {
  return master.is_in_file() && std::ranges::all_of(states, &StateArray::is_in_file);
}

std::vector<StateArray> UnitArrays::drafted() const {
  if (!can_be_drafted()) return {};
  std::vector<StateArray> arrays = states;
  arrays.push_back(master);
  if (rounded.is_in_file()) arrays.push_back(rounded);
  return arrays;
}

UnitArrays UnitArrays::draft() const {
  UnitArrays copy{.gradients = gradients, .master = master.snapshot(), .stored = stored};
  for (const StateArray& state : states) copy.states.push_back(state.snapshot());
  if (rounded.is_in_file()) copy.rounded = rounded.snapshot();
  return copy;
}

void UnitArrays::take(const UnitArrays& draft) const {
  master.file()->take(*draft.master.file());
  for (std::size_t i = 0; i < states.size(); ++i) states[i].file()->take(*draft.states[i].file());
  if (rounded.is_in_file()) rounded.file()->take(*draft.rounded.file());
}

void UnitArrays::round(std::int64_t begin, const at::Tensor& values) const {
  if (rounded.defined()) rounded.write(begin, values.to(stored));
}

}  // namespace unishard::trainer::detail
