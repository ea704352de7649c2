#include "core/later_changes.hpp"

#include "unishard/converters/extra_state.hpp"
#include "unishard/converters/optimizer_scalars.hpp"
#include "unishard/format/text.hpp"

#include "core/model_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

namespace unishard::converters {
namespace {

/// Returns a value without objects of Python in it, a tuple as a list; nullopt for others.
std::optional<Json> plain(const Json& value) {
  if (value.is_object()) {
    if (value.contains("$type") && value.contains("items") && value["$type"] == "tuple")
      return plain(value["items"]);
    Json members = Json::object();
    for (const auto& [key, child] : value.items()) {
      auto member = key.starts_with('$') ? std::nullopt : plain(child);
      if (!member) return std::nullopt;
      members[key] = std::move(*member);
    }
    return members;
  }
  if (!value.is_array()) return value;
  Json items = Json::array();
  for (const Json& child : value) {
    auto item = plain(child);
    if (!item) return std::nullopt;
    items.push_back(std::move(*item));
  }
  return items;
}

std::set<double> steps_of(const Catalog& catalog) {
  const OptimizerScalars scalars(catalog);
  std::set<double> steps;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (is_of_model(tensor) || tensor.state == kExtraState) continue;
    if (const Json step = scalars.step(tensor.fqn); step.is_number())
      steps.insert(step.get<double>());
  }
  return steps;
}

class Changes {
 public:
  explicit Changes(Catalog& catalog) : catalog_(catalog) {}

  std::vector<std::string> take(const FileScalars& file) {
    take_groups(file.groups);
    take_steps(file.steps);
    const Json& client_state = catalog_.client_state;
    if (file.values.is_object() && (client_state.is_null() || client_state.is_object()))
      take_values(file.values);
    if (!names_.empty())
      lines_.push_back(
          fmt::format("another program has saved this again, and unishard.catalog in it is of an "
                      "earlier save: read as they are now: {}",
                      first_names(names_)));
    return std::move(lines_);
  }

 private:
  /// Takes the file's value for one that the catalog has and that differs.
  void take_value(Json& old, const Json& now, const std::string& name) {
    const auto value = plain(now), before = plain(old);
    if (!value || !before || *value == *before) return;
    old = *value;
    names_.push_back(name);
  }

  void take_groups(const Json& now) {
    constexpr std::array<std::string_view, 2> kNames = {"params", "param_names"};
    Json& groups = catalog_.groups;
    if (!now.is_array() || !groups.is_array() || now.size() != groups.size()) return;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (!groups[g].is_object() || !now[g].is_object()) continue;
      for (auto& [key, value] : groups[g].items()) {
        const auto found = now[g].find(key);
        if (found == now[g].end() || std::ranges::count(kNames, key) > 0) continue;
        take_value(value, *found, fmt::format("param_groups.{}.{}", g, key));
      }
    }
  }

  /// Takes one step counter for all parameters. That there are several is only said.
  void take_steps(const std::set<double>& now) {
    const std::set<double> before = steps_of(catalog_);
    if (now.empty() || before.empty() || now == before) return;
    if (now.size() != 1) {
      lines_.emplace_back(
          "the steps of the optimizer's parameters are others than in unishard.catalog, and differ "
          "from each other: those of unishard.catalog are read; save it without that key, and they "
          "are read as they are now");
      return;
    }
    names_.emplace_back("the optimizer's steps");
    const double step = *now.begin();
    Json& state = catalog_.client_state;
    if (state.is_object() && state.contains(kOptimizerScalars) &&
        state[kOptimizerScalars].contains("step")) {
      for (Json& counter : state[kOptimizerScalars]["step"]) counter = step;
    }
    if (before.contains(static_cast<double>(catalog_.step)) && step >= 0 && step < 1e15)
      catalog_.step = static_cast<std::int64_t>(step);
  }

  void take_values(const Json& now) {
    for (const auto& [key, value] : now.items()) {
      const auto old = catalog_.client_state.find(key);
      if (old != catalog_.client_state.end()) {
        take_value(*old, value, key);
      } else if (const auto added = plain(value)) {
        catalog_.client_state[key] = *added;
        names_.push_back(key);
      }
    }
  }

  Catalog& catalog_;
  std::vector<std::string> names_, lines_;
};

}  // namespace

FileScalars scalars_of(const Catalog& without_text) {
  return {without_text.groups, steps_of(without_text), {}};
}

std::vector<std::string> take_later_changes(const FileScalars& file, Catalog& catalog) {
  return Changes(catalog).take(file);
}

}  // namespace unishard::converters
