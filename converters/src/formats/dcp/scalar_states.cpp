#include "formats/dcp/scalar_states.hpp"

#include "containers/pickle_json.hpp"
#include "containers/plain_settings.hpp"
#include "containers/state_parts.hpp"
#include "core/key_text.hpp"
#include "core/nested_states.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace unishard::converters::dcp {
namespace {

/// Calls `take` with each key and value of a dict; returns false for other values.
template <class Take>
bool each_member(const Json& dict, const Take& take) {
  if (!dict.is_object() || dict.contains("$tensor")) return false;
  if (!dict.contains("$type")) {
    for (const auto& [key, value] : dict.items()) take(Json(key), value);
    return true;
  }
  if (!dict.contains("pairs") || !dict["pairs"].is_array()) return false;
  for (const Json& pair : dict["pairs"]) take(pair.at(0), pair.at(1));
  return true;
}

/// {state: {fqn: value}}, built without searching in objects.
class Table {
 public:
  void declare(const std::string& state) { rows_of(state); }
  void add(const std::string& state, const std::string& fqn, Json value) {
    if (known_.insert(fmt::format("{}\n{}", state, fqn)).second)
      rows_of(state).push_back({fqn, std::move(value)});
  }
  Json take() {
    Json::object_t out;
    for (auto& [state, rows] : states_) out.push_back({state, Json(std::move(rows))});
    return Json(std::move(out));
  }

 private:
  Json::object_t& rows_of(const std::string& state) {
    const auto [place, is_new] = places_.emplace(state, states_.size());
    if (is_new) states_.emplace_back(state, Json::object_t());
    return states_[place->second].second;
  }
  std::vector<std::pair<std::string, Json::object_t>> states_;
  std::unordered_map<std::string, std::size_t> places_;
  std::unordered_set<std::string> known_;
};

}  // namespace

void ScalarStates::add(OptimizerKey key, Json value) {
  if (key.state == kStep) value = torch::with_plain_numbers(std::move(value));
  values_.push_back({std::move(key), std::move(value)});
}

void ScalarStates::lose(const OptimizerKey& key, const Json& value, std::string_view why,
                        Losses& losses) {
  const auto [known, is_new] =
      lost_.try_emplace({key.state, std::string(why)}, LostState{losses.size(), key.fqn});
  LostState& lost = known->second;
  const std::string state = dotted_state(key.state);
  if (is_new)
    losses.push_back({Role::State, fmt::format("{} of {}", state, key.fqn), std::string(why)});
  if (++lost.count > 1)
    losses[lost.loss].name =
        fmt::format("{} of {} parameters, {} first", state, lost.count, lost.first);
  for (const std::string& tensor : torch::tensors_in(value)) tensors_[tensor] = std::nullopt;
}

void ScalarStates::add_state(const OptimizerKey& key, const Json& value, Losses& losses) {
  const auto part_of = [&](std::string state) {
    return OptimizerKey{key.optimizer, key.fqn, std::move(state)};
  };
  torch::StateParts parts = torch::parts_of_state(key.state, value);
  for (auto& [state, tensor] : parts.tensors)
    tensors_.try_emplace(std::move(tensor), part_of(std::move(state)));
  for (auto& [state, part] : parts.values) add(part_of(std::move(state)), std::move(part));
  for (const auto& [state, why, part] : parts.lost) lose(part_of(state), part, why, losses);
}

void ScalarStates::add_part(const OptimizerKey& key, const KeyPath& path, Json value) {
  const std::vector<std::string> levels = state_levels(key.state);
  if (levels.size() < 2 || path.size() < levels.size()) return;
  const auto own = path.end() - static_cast<std::ptrdiff_t>(levels.size());
  if (own->text != levels.front()) return;
  Container& container = containers_[{key.optimizer, key.fqn, own->text}];
  container.has_positions |=
      std::any_of(own + 1, path.end(), [](const PathPart& part) { return part.is_position; });
  container.tree.insert({own + 1, path.end()}, std::move(value));
  container.parts.insert(key.state);
}

void ScalarStates::join_parts() {
  for (auto& [of, container] : containers_) {
    if (!container.has_positions) continue;
    const auto& [optimizer, fqn, state] = of;
    std::erase_if(values_, [&](const Value& each) {
      return each.key.optimizer == optimizer && each.key.fqn == fqn &&
             container.parts.contains(each.key.state);
    });
    add({optimizer, fqn, state}, container.tree.json());
  }
  containers_.clear();
}

void ScalarStates::add_all(std::size_t optimizer, const Json& states, Losses& losses) {
  each_member(states, [&](const Json& parameter, const Json& of_parameter) {
    const std::string fqn = key_text(parameter);
    const bool is_dict = each_member(of_parameter, [&](const Json& state, const Json& value) {
      const OptimizerKey key{optimizer, fqn, key_text(state)};
      const bool is_named = state.is_string() && is_own_state_name(key.state);
      if (is_named) return add_state(key, value, losses);
      lose(key, value, state.is_string() ? "its key" : "its key is not a text", losses);
    });
    if (is_dict) return;
    losses.push_back({Role::State, fqn, "no states of a parameter"});
    for (const std::string& tensor : torch::tensors_in(of_parameter))
      tensors_[tensor] = std::nullopt;
  });
}

std::set<std::string> ScalarStates::names(std::size_t optimizer) const {
  std::set<std::string> found;
  for (const Value& each : values_) {
    if (each.key.optimizer == optimizer) found.insert(each.key.fqn);
  }
  return found;
}

std::vector<double> ScalarStates::steps() const {
  std::vector<double> found;
  for (const Value& each : values_) {
    if (each.key.state == kStep && each.value.is_number())
      found.push_back(each.value.get<double>());
  }
  return found;
}

Json ScalarStates::json(const Name& name_of, const std::vector<TensorStep>& tensor_steps,
                        const std::vector<std::string>& stateful, bool is_known) const {
  const std::string step(kStep);
  Table table;
  std::unordered_set<std::string> counting;
  std::vector<std::string> all = stateful;
  bool has_own = false;  // steps that Catalog::step and a float32 tensor do not express
  for (const Value& each : values_) {
    const std::string fqn = name_of(each.key);
    all.push_back(fqn);
    table.add(each.key.state, fqn, each.value);
    if (each.key.state == kStep) counting.insert(fqn);
  }
  has_own = !counting.empty();
  for (const TensorStep& tensor : tensor_steps) {
    counting.insert(tensor.fqn);
    has_own |= tensor.value != tensor_steps.front().value;
  }
  if (counting.empty()) {
    if (!all.empty() && (!is_known || !values_.empty())) table.declare(step);
    return table.take();
  }
  has_own |=
      std::ranges::any_of(all, [&](const std::string& fqn) { return !counting.contains(fqn); });
  if (!has_own) return table.take();
  for (const TensorStep& tensor : tensor_steps) table.add(step, tensor.fqn, tensor.value);
  for (const std::string& fqn : all) {
    if (!counting.contains(fqn)) table.add(step, fqn, nullptr);
  }
  return table.take();
}

}  // namespace unishard::converters::dcp
