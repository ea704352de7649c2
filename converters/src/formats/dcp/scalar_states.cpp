#include "formats/dcp/scalar_states.hpp"

#include "containers/pickle_json.hpp"

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

std::string text_of(const Json& key) {
  return key.is_string() ? key.get<std::string>() : key.dump();
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
  values_.push_back({std::move(key), std::move(value)});
}

void ScalarStates::add_all(std::size_t optimizer, const Json& states,
                           std::vector<std::string>& notes) {
  each_member(states, [&](const Json& parameter, const Json& of_parameter) {
    const std::string fqn = text_of(parameter);
    const bool is_dict = each_member(of_parameter, [&](const Json& state, const Json& value) {
      if (value.is_object() && value.contains("$tensor")) return;
      if (!state.is_string() || !torch::tensors_in(value).empty()) {
        notes.push_back(fmt::format("left out: optimizer state {} of {} ({})", text_of(state), fqn,
                                    state.is_string() ? "a container of tensors" : "its key"));
      } else {
        add({optimizer, fqn, state.get<std::string>()}, value);
      }
    });
    if (!is_dict)
      notes.push_back(
          fmt::format("left out: {} among the optimizer's states (no states of a "
                      "parameter)",
                      fqn));
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
