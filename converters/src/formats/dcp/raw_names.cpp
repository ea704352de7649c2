#include "formats/dcp/raw_names.hpp"

#include "formats/dcp/keys.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <string_view>
#include <unordered_set>

namespace unishard::converters::dcp {
namespace {

// The choice is unique if and only if the earliest and the latest fit are the same.
std::optional<std::vector<std::string>> only_fit_of_one(
    const std::vector<NamedShape>& model, const std::vector<std::optional<Shape>>& parameters) {
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
  names.reserve(earliest.size());
  for (const std::size_t m : earliest) names.push_back(model[m].name);
  return names;
}

std::optional<std::vector<std::string>> only_fit(
    const std::vector<NamedShape>& model,
    const std::vector<std::vector<std::optional<Shape>>>& groups) {
  std::map<Shape, std::size_t> group_of;
  std::vector<std::string> names;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const auto& shape : groups[g]) {
      if (!shape || group_of.emplace(*shape, g).first->second != g) return std::nullopt;
    }
    auto fit = only_fit_of_one(model, groups[g]);
    if (!fit) return std::nullopt;
    std::ranges::move(*fit, std::back_inserter(names));
  }
  return names;
}

/// One number for each parameter of the model: the order leaves no choice.
std::optional<std::vector<std::string>> one_by_one(
    const std::vector<NamedShape>& model, const std::vector<std::optional<Shape>>& parameters) {
  if (model.size() != parameters.size()) return std::nullopt;
  std::vector<std::string> names;
  names.reserve(model.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::optional<Shape>& shape = parameters[i];
    if (shape && *shape != model[i].shape) return std::nullopt;
    names.push_back(model[i].name);
  }
  return names;
}

/// Groups of one parameter each list the parameters in the order of the model, as one group does.
std::vector<std::vector<std::optional<Shape>>> joined_singles(
    const std::vector<std::vector<std::optional<Shape>>>& groups) {
  if (std::ranges::any_of(groups, [](const auto& group) { return group.size() != 1; }))
    return groups;
  std::vector<std::optional<Shape>> all;
  all.reserve(groups.size());
  for (const auto& group : groups) all.push_back(group.front());
  return {std::move(all)};
}

/// Whether modules give such a name to statistics and tables, which are not trained.
bool has_name_of_buffer(std::string_view fqn) {
  constexpr std::array<std::string_view, 11> kUsual = {
      "mean",      "std",        "var",        "pixel_mean", "pixel_std", "inv_freq",
      "freqs_cis", "cos_cached", "sin_cached", "mask",       "pe"};
  return std::ranges::count(kUsual, fqn.substr(fqn.rfind('.') + 1)) > 0;
}

}  // namespace

NumberedParameters numbered_parameters(const std::vector<Json>& groups,
                                       const std::unordered_map<std::string, Shape>& shapes) {
  NumberedParameters out;
  for (const Json& group : groups) {
    out.groups.emplace_back();
    for (const Json& number : group["params"]) {
      if (!number.is_number_integer()) continue;
      out.numbers.push_back(number.dump());
      const auto shape = shapes.find(out.numbers.back());
      out.groups.back().push_back(shape == shapes.end() ? std::nullopt
                                                        : std::optional(shape->second));
    }
  }
  return out;
}

std::vector<std::string> listed_names(const std::vector<Json>& groups) {
  std::vector<std::string> names;
  for (const Json& group : groups) {
    const Json listed = group.value("param_names", Json::array());
    if (!listed.is_array() || listed.size() != group["params"].size()) return {};
    for (const Json& name : listed) {
      if (!name.is_string()) return {};
      names.push_back(without_wrappers(name.get<std::string>()));
    }
  }
  return names;
}

std::optional<std::vector<std::string>> fit_listed(std::vector<std::string> names,
                                                   const NumberedParameters& parameters,
                                                   const std::vector<NamedShape>& model) {
  if (names.size() != parameters.numbers.size()) return std::nullopt;
  std::unordered_map<std::string_view, const Shape*> known;
  for (const NamedShape& parameter : model) known.emplace(parameter.name, &parameter.shape);
  std::size_t i = 0;
  for (const auto& group : parameters.groups) {
    for (const auto& shape : group) {
      std::string& name = names[i++];
      if (model.empty()) continue;
      if (!known.contains(name)) name = std::string(without_replica(name));
      const auto found = known.find(name);
      if (found == known.end() || (shape && *shape != *found->second)) return std::nullopt;
    }
  }
  const std::unordered_set<std::string_view> different(names.begin(), names.end());
  if (different.size() != names.size()) return std::nullopt;
  return names;
}

std::optional<std::vector<std::string>> fit_different_shapes(const NumberedParameters& parameters,
                                                             const std::vector<NamedShape>& model,
                                                             std::size_t trained) {
  if (model.size() != trained) return std::nullopt;
  std::map<Shape, std::vector<std::string>> by_shape;
  for (const NamedShape& parameter : model) by_shape[parameter.shape].push_back(parameter.name);
  std::vector<std::string> names;
  for (const auto& group : parameters.groups) {
    for (const auto& shape : group) {
      if (!shape) return std::nullopt;
      const auto found = by_shape.find(*shape);
      if (found == by_shape.end() || found->second.size() != 1 ||
          has_name_of_buffer(found->second.front()))
        return std::nullopt;
      names.push_back(std::move(found->second.front()));
      by_shape.erase(found);
    }
  }
  return names;
}

std::optional<std::vector<std::string>> fit_by_shape(const NumberedParameters& parameters,
                                                     const std::vector<NamedShape>& model) {
  const auto groups = joined_singles(parameters.groups);
  const bool have_all_states = std::ranges::all_of(groups, [](const auto& group) {
    return std::ranges::all_of(group, [](const auto& shape) { return shape.has_value(); });
  });
  if (have_all_states) return only_fit(model, groups);
  if (groups.size() == 1) return one_by_one(model, groups.front());
  return std::nullopt;
}

}  // namespace unishard::converters::dcp
