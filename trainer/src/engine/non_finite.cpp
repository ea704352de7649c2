#include "engine/non_finite.hpp"

#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace unishard::trainer::detail {
namespace {

/// Returns the number, over all units in order, of the first parameter whose gradient is not finite
/// on this rank; `none` when there is none.
std::int64_t first_bad_parameter(const ModelState& model, std::int64_t none) {
  std::int64_t number = 0;
  for (const UnitRecord& unit : model.units) {
    for (std::size_t slot = 0; slot < unit.fqns.size(); ++slot, ++number) {
      const UnitLayout& layout = unit.flat->layout();
      if (layout.held(slot).empty()) continue;  // another rank's; it has no offset here
      const at::Tensor gradient =
          unit.flat->gradients().values(static_cast<std::int64_t>(layout.held_offset(slot)),
                                        static_cast<std::int64_t>(layout.held(slot).size()));
      if (!at::isfinite(gradient).all().item<bool>()) return number;
    }
  }
  return none;
}

std::string describe_parameter(const ModelState& model, std::int64_t number, std::size_t rank) {
  for (const UnitRecord& unit : model.units) {
    const auto count = static_cast<std::int64_t>(unit.fqns.size());
    if (number < count) {
      return fmt::format("the gradient of {} (unit {}) is not finite on rank {}",
                         unit.fqns[static_cast<std::size_t>(number)],
                         unit.name.empty() ? "root" : unit.name, rank);
    }
    number -= count;
  }
  return {};
}

}  // namespace

std::string describe_non_finite(const ModelState& model, std::span<const double> losses,
                                Communicator& communicator) {
  std::string text;
  const auto bad =
      std::ranges::find_if_not(losses, [](double loss) { return std::isfinite(loss); });
  if (bad != losses.end()) {
    const auto id = static_cast<std::uint32_t>(bad - losses.begin());
    text = fmt::format("the loss of micro-batch {} (rank {}) is {}", id, id % communicator.size(),
                       *bad);
  }
  constexpr std::int64_t kNone = std::int64_t{1} << 40;
  const auto mine = static_cast<double>(first_bad_parameter(model, kNone));
  const std::vector<double> all = gather_doubles(communicator, {&mine, 1});
  const auto first = std::ranges::min_element(all);
  if (*first == static_cast<double>(kNone)) return text;
  if (!text.empty()) text += "; ";
  return text + describe_parameter(model, static_cast<std::int64_t>(*first),
                                   static_cast<std::size_t>(first - all.begin()));
}

}  // namespace unishard::trainer::detail
