#include "formats/trainer/parameter_names.hpp"

#include "formats/dcp/keys.hpp"
#include "formats/trainer/known_models.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>

namespace unishard::converters::trainer {
namespace {

using dcp::NamedShape;
using dcp::NumberedParameters;
using Names = std::optional<std::vector<std::string>>;

/// Whether `name` has `part` between dots.
bool has_part(std::string_view name, std::string_view part) {
  for (std::size_t at = name.find(part); at != name.npos; at = name.find(part, at + 1)) {
    const std::size_t end = at + part.size();
    if ((at == 0 || name[at - 1] == '.') && (end == name.size() || name[end] == '.')) return true;
  }
  return false;
}

/// Whether some part of `name` ends with `end`.
bool has_part_ending(std::string_view name, std::string_view end) {
  for (std::size_t at = name.find(end); at != name.npos; at = name.find(end, at + 1)) {
    if (at + end.size() == name.size() || name[at + end.size()] == '.') return true;
  }
  return false;
}

/// The Trainer's rule for parameters without weight decay, as far as names decide it.
bool decays(std::string name) {
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr std::array<std::string_view, 3> kAnywhere = {"bias", "layernorm", "rmsnorm"};
  return std::ranges::none_of(kAnywhere, [&](auto text) { return name.find(text) != name.npos; }) &&
         !has_part(name, "norm") && !has_part_ending(name, "_norm");
}

/// Gives each group the parameters that the Trainer's rule gives it. The rule exempts the weights
/// of layers that normalise too, whose class a name may not tell: with `exempts_vectors`, all
/// vectors.
Names fit_by_rule(const NumberedParameters& parameters, const std::vector<NamedShape>& model,
                  bool exempts_vectors) {
  if (parameters.groups.size() != 2) return std::nullopt;
  std::array<std::vector<const NamedShape*>, 2> groups;
  for (const NamedShape& parameter : model) {
    const bool is_exempt =
        !decays(parameter.name) || (exempts_vectors && parameter.shape.size() == 1);
    groups[is_exempt ? 1 : 0].push_back(&parameter);
  }
  std::vector<std::string> names;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& shapes = parameters.groups[g];
    if (shapes.size() != groups[g].size()) return std::nullopt;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      if (shapes[i] && *shapes[i] != groups[g][i]->shape) return std::nullopt;
      names.push_back(groups[g][i]->name);
    }
  }
  return names;
}

Names fit(const NumberedParameters& parameters, const std::vector<NamedShape>& model) {
  if (auto names = dcp::fit_by_shape(parameters, model)) return names;
  if (auto names = fit_by_rule(parameters, model, false)) return names;
  return fit_by_rule(parameters, model, true);
}

/// Returns the model in `order`; nullopt when that has not all of its parameters.
std::optional<std::vector<NamedShape>> in_order(const ModelOrder& order,
                                                const std::vector<NamedShape>& model) {
  std::vector<std::pair<OrderKey, const NamedShape*>> placed;
  for (const NamedShape& parameter : model) {
    auto place = order.place_of(parameter.name);
    if (!place) return std::nullopt;
    placed.emplace_back(std::move(*place), &parameter);
  }
  std::ranges::sort(placed);
  std::vector<NamedShape> out;
  out.reserve(placed.size());
  for (const auto& [place, parameter] : placed) out.push_back(*parameter);
  return out;
}

}  // namespace

Names name_parameters(const OrderSource& source, const NumberedParameters& parameters,
                      const std::vector<NamedShape>& model) {
  if (parameters.groups.size() != 2 && !source.is_assumed)
    return dcp::fit_different_shapes(parameters, model, parameters.numbers.size());
  if (source.is_file_order) return fit(parameters, model);
  if (auto names = dcp::fit_different_shapes(parameters, model, parameters.numbers.size()))
    return names;
  std::vector<ModelOrder> orders;
  if (!source.model_type) {
    orders = known_orders();
  } else if (auto order = known_order(*source.model_type)) {
    orders.push_back(std::move(*order));
  }
  Names names;
  for (const ModelOrder& order : orders) {
    const auto ordered = in_order(order, model);
    if (!ordered) continue;
    Names fitting = fit(parameters, *ordered);
    if (!fitting) continue;
    if (names && *names != *fitting) return std::nullopt;
    names = std::move(fitting);
  }
  return names;
}

}  // namespace unishard::converters::trainer
