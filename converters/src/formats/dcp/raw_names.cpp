#include "formats/dcp/raw_names.hpp"

#include <algorithm>
#include <iterator>
#include <map>

namespace unishard::converters::dcp {
namespace {

// The choice is unique if and only if the earliest and the latest fit are the same.
std::optional<std::vector<std::string>> only_fit_of_one(const std::vector<NamedShape>& model,
                                                        const std::vector<Shape>& parameters) {
  std::vector<std::size_t> earliest;
  for (std::size_t m = 0; m < model.size() && earliest.size() < parameters.size(); ++m) {
    if (model[m].shape == parameters[earliest.size()]) earliest.push_back(m);
  }
  if (earliest.size() != parameters.size()) return std::nullopt;
  std::size_t left = parameters.size();
  for (std::size_t m = model.size(); m-- > 0 && left > 0;) {
    if (model[m].shape != parameters[left - 1]) continue;
    if (earliest[--left] != m) return std::nullopt;
  }
  std::vector<std::string> names;
  for (const std::size_t m : earliest) names.push_back(model[m].name);
  return names;
}

}  // namespace

std::optional<std::vector<std::string>> only_fit(const std::vector<NamedShape>& model,
                                                 const std::vector<std::vector<Shape>>& groups) {
  std::map<Shape, std::size_t> group_of;
  std::vector<std::string> names;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const Shape& shape : groups[g]) {
      if (group_of.emplace(shape, g).first->second != g) return std::nullopt;
    }
    auto fit = only_fit_of_one(model, groups[g]);
    if (!fit) return std::nullopt;
    std::ranges::move(*fit, std::back_inserter(names));
  }
  return names;
}

}  // namespace unishard::converters::dcp
