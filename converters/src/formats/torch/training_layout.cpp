#include "formats/torch/training_layout.hpp"

#include "unishard/converters/extra_state.hpp"
#include "unishard/converters/optimizer_scalars.hpp"
#include "unishard/converters/parameter_groups.hpp"
#include "unishard/format/error.hpp"

#include "containers/pickle_json.hpp"
#include "core/embedded_catalog.hpp"
#include "core/nested_states.hpp"
#include "formats/dcp/client_tree.hpp"
#include "formats/dcp/own_layout.hpp"
#include "formats/torch/client_values.hpp"
#include "formats/torch/file_arrangement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

namespace unishard::converters::torch {
namespace {

using dcp::KeyPath;

constexpr std::string_view kModel = "model.", kOptimizer = "optimizer.state.";

Json dict(Json pairs) { return {{"$type", "builtins.dict"}, {"pairs", std::move(pairs)}}; }

Json pair(Json key, Json value) {
  Json both = Json::array();
  both.push_back(std::move(key));
  both.push_back(std::move(value));
  return both;
}

/// The groups, each with the fqns of its parameters.
Json param_groups(const Catalog& catalog) {
  Json groups = catalog.groups.is_array() ? catalog.groups : Json::array({Json::object()});
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].contains("params")) continue;
    Json params = Json::array();
    for (const TensorInfo& tensor : catalog.tensors) {
      if (tensor.group == static_cast<std::int32_t>(g) && tensor.state == state::kFp32)
        params.push_back(tensor.fqn);
    }
    groups[g]["params"] = std::move(params);
  }
  for (Json& group : groups) group = with_tuples(std::move(group));
  return groups;
}

class Planner {
 public:
  /// Without `values`, the client state is in the catalog's text only.
  Planner(const Catalog& catalog, FileArrangement places, const ClientValues* values)
      : catalog_(catalog),
        places_(std::move(places)),
        scalars_(catalog),
        client_(values),
        usual_(flat_paths(catalog, kModel)),
        groups_(param_groups(catalog)),
        names_(usual_.size()) {}

  /// Returns nullopt when two tensors would have the same name, or two parts the same place.
  std::optional<TrainingLayout> plan() {
    take_client_state();
    sort_states();
    number_parameters();
    if (!places_.optimizer && (!states_.empty() || catalog_.groups.is_array()))
      places_.optimizer = FileArrangement().optimizer;
    for (const std::string& key : places_.keys) add_key(key);
    add_key(places_.model.front().text);
    if (places_.optimizer) add_key(places_.optimizer->front().text);
    if (client_ != nullptr) {
      for (const auto& [key, value] : client_->members()) add_key(key);
    }
    Json others = other_tensors();
    if (!is_unique_) return std::nullopt;
    Json ours = {{"catalog", catalog_text(catalog_, names_)}};
    if (!others.empty()) ours["tensors"] = std::move(others);
    tree_.insert({{std::string(kOurKey), false}}, std::move(ours));
    layout_.object = tree_.json();
    return std::move(layout_);
  }
  std::vector<std::string> notes;

 private:
  /// Extra tensors at a place of the client state are no states of an optimizer.
  void take_client_state() {
    if (client_ == nullptr) return;
    for (const auto& [index, name] : client_->tensors()) {
      is_placed_.insert(index);
      add_tensor(index, name);
    }
    for (const auto& [name, tensor] : client_->constants()) {
      is_unique_ = is_unique_ && !layout_.tensors.contains(name);
      layout_.constants.emplace(name, tensor);
    }
    notes = client_->notes();
  }

  bool is_extra(std::size_t index) const { return catalog_.tensors[index].state == kExtraState; }
  bool is_state(std::size_t index) const {
    return usual_[index].starts_with(kOptimizer) && !is_extra(index);
  }

  /// The tensors of neither model nor optimizer for which the client state has no place.
  Json other_tensors() {
    Json::object_t others;
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
      if (!is_extra(i) || is_placed_.contains(i)) continue;
      const std::string& fqn = catalog_.tensors[i].fqn;
      others.push_back({fqn, tensor(i, fmt::format("{}.tensors.{}", kOurKey, fqn))});
    }
    return Json(std::move(others));
  }

  void sort_states() {
    std::unordered_map<std::string_view, std::size_t> places;
    for (std::size_t i = 0; i < usual_.size(); ++i) {
      if (!is_state(i)) continue;
      const std::string& fqn = catalog_.tensors[i].fqn;
      const auto [place, is_new] = places.emplace(fqn, states_.size());
      if (is_new) states_.push_back({fqn, {}});
      states_[place->second].tensors.push_back(i);
    }
    for (const std::string& fqn : scalars_.fqns()) {
      if (places.emplace(fqn, 0).second) states_.push_back({fqn, {}});
    }
  }

  /// Whether the optimizer's parameters had numbers. One that has made no step has no states, only
  /// the parameters of its groups.
  bool are_numbers() const {
    if (!states_.empty())
      return std::ranges::all_of(
          states_, [](const State& state) { return parameter_number(state.fqn).has_value(); });
    return std::ranges::any_of(groups_,
                               [](const Json& group) { return !group["params"].empty(); }) &&
           std::ranges::all_of(groups_, [](const Json& group) {
             return std::ranges::all_of(group["params"], [](const Json& fqn) {
               return fqn.is_string() && parameter_number(fqn.get_ref<const std::string&>());
             });
           });
  }

  /// Gives the parameters the numbers that torch.optim gives them, if all have one.
  void number_parameters() {
    if (!places_.is_numbered && !are_numbers()) return;
    std::int64_t next = 0;
    for (const Json& group : groups_) {
      for (const Json& fqn : group["params"]) {
        if (!fqn.is_string()) continue;
        const auto& name = fqn.get_ref<const std::string&>();
        numbers_.emplace(name, parameter_number(name).value_or(next));
        ++next;
      }
    }
    const bool all_known = std::ranges::all_of(
        states_, [&](const State& state) { return numbers_.contains(state.fqn); });
    if (!all_known) return numbers_.clear();
    for (Json& group : groups_) {
      for (Json& fqn : group["params"]) fqn = numbers_.at(fqn.get<std::string>());
    }
    std::ranges::sort(states_, {}, [&](const State& state) { return numbers_.at(state.fqn); });
  }

  /// Adds what the object has below one of its keys.
  void add_key(const std::string& key) {
    if (!added_.insert(key).second) return;
    if (places_.model.front().text == key) insert(places_.model, model());
    if (places_.optimizer && places_.optimizer->front().text == key)
      insert(*places_.optimizer, optimizer());
    const Json* const value = client_ == nullptr ? nullptr : client_->find(key);
    if (value != nullptr) insert_client({{key, false}}, *value);
  }

  /// Adds a value beside the model and the optimizer, which may be below it.
  void insert_client(const KeyPath& path, const Json& value) {
    const auto is_above = [&](const KeyPath& place) {
      return place.size() > path.size() && std::equal(path.begin(), path.end(), place.begin());
    };
    const bool is_divided =
        is_above(places_.model) || (places_.optimizer && is_above(*places_.optimizer));
    const bool is_open = value.is_array() || (value.is_object() && !value.contains("$type") &&
                                              !value.contains("$tensor"));
    if (!is_divided || !is_open) return insert(path, value);
    const auto insert_part = [&](std::string part, bool is_position, const Json& child) {
      KeyPath longer = path;
      longer.push_back({std::move(part), is_position});
      insert_client(longer, child);
    };
    if (value.is_array()) {
      for (std::size_t i = 0; i < value.size(); ++i) insert_part(std::to_string(i), true, value[i]);
    } else {
      for (const auto& [key, child] : value.items()) insert_part(key, false, child);
    }
  }

  void insert(const KeyPath& path, Json value) {
    is_unique_ = tree_.insert(path, std::move(value)) && is_unique_;
  }

  Json tensor(std::size_t index, std::string name) {
    add_tensor(index, name);
    return {{"$tensor", std::move(name)}};
  }
  void add_tensor(std::size_t index, const std::string& name) {
    names_[index] = name;
    is_unique_ = layout_.tensors.emplace(name, index).second && !layout_.steps.contains(name) &&
                 !layout_.constants.contains(name) && is_unique_;
  }

  Json model() {
    const std::string prefix = dcp::joined(places_.model) + ".";
    const auto key_of = [&](const std::string& fqn) {
      return places_.is_compiled ? std::string(kCompiled) + fqn : fqn;
    };
    Json members = Json::array();
    std::unordered_map<std::string_view, std::string> name_of;
    for (std::size_t i = 0; i < usual_.size(); ++i) {
      if (is_placed_.contains(i) || usual_[i].starts_with(kOptimizer)) continue;
      const std::string key = key_of(catalog_.tensors[i].fqn);
      members.push_back(pair(key, tensor(i, prefix + key)));
      name_of.emplace(catalog_.tensors[i].fqn, names_[i]);
    }
    for (const Alias& alias : catalog_.aliases) {
      if (const auto target = name_of.find(alias.target); target != name_of.end())
        members.push_back(pair(key_of(alias.fqn), {{"$tensor", target->second}}));
    }
    return {{"$type", "collections.OrderedDict"}, {"pairs", std::move(members)}};
  }

  Json optimizer() {
    const std::string prefix = dcp::joined(*places_.optimizer) + ".state.";
    Json states = Json::array();
    for (const State& each : states_) {
      const auto number = numbers_.find(each.fqn);
      const Json key = number == numbers_.end() ? Json(each.fqn) : Json(number->second);
      const std::string id = number == numbers_.end() ? each.fqn : std::to_string(number->second);
      states.push_back(pair(key, states_of(each, prefix + id + ".")));
    }
    return {{"state", dict(std::move(states))}, {"param_groups", groups_}};
  }

  struct State {
    std::string fqn;
    std::vector<std::size_t> tensors;
  };

  Json states_of(const State& of, const std::string& prefix) {
    Json members = Json::array();
    if (const Json step = scalars_.step(of.fqn); step.is_number_float()) {
      const std::string name = prefix + "step";
      is_unique_ = layout_.steps.emplace(name, step.get<float>()).second &&
                   !layout_.tensors.contains(name) && !layout_.constants.contains(name) &&
                   is_unique_;
      members.push_back(pair("step", {{"$tensor", name}}));
    } else if (!step.is_null()) {
      members.push_back(pair("step", step));
    }
    Json::object_t values;
    for (const auto& [state, value] : scalars_.of(of.fqn)) values.push_back({state, *value});
    const Json kept = without_unwritable(Json(std::move(values)),
                                         fmt::format("optimizer state of {}", of.fqn), notes);
    Json::object_t flat;
    for (const auto& [state, value] : kept.items()) flat.push_back({state, value});
    for (const std::size_t i : of.tensors) {
      const std::string state = usual_[i].substr(kOptimizer.size() + of.fqn.size() + 1);
      flat.push_back({state, tensor(i, prefix + dotted_state(state))});
    }
    const Json nested = nest_states(flat);
    for (const auto& [state, value] : nested.items()) members.push_back(pair(state, value));
    return dict(std::move(members));
  }

  const Catalog& catalog_;
  FileArrangement places_;
  const OptimizerScalars scalars_;
  const ClientValues* const client_;
  const std::vector<std::string> usual_;  // names in the usual arrangement
  Json groups_;
  std::vector<std::string> names_;
  std::vector<State> states_;
  std::unordered_map<std::string, std::int64_t> numbers_;
  std::unordered_set<std::size_t> is_placed_;
  std::unordered_set<std::string> added_;
  dcp::ClientTree tree_;
  TrainingLayout layout_;
  bool is_unique_ = true;
};

}  // namespace

TrainingLayout plan_training_layout(const Catalog& catalog, std::vector<std::string>& notes) {
  const ClientValues values(catalog);
  const auto attempt = [&](FileArrangement places, const ClientValues* client) {
    Planner planner(catalog, std::move(places), client);
    auto layout = planner.plan();
    if (layout) notes.insert(notes.end(), planner.notes.begin(), planner.notes.end());
    return layout;
  };
  if (auto layout = attempt(arrangement_of(catalog), &values)) return std::move(*layout);
  if (auto layout = attempt({}, &values)) return std::move(*layout);
  auto layout = attempt({}, nullptr);
  if (!layout) raise(ErrorCode::Unsupported, "two tensors would have one name in a torch file");
  if (!values.members().empty())
    notes.push_back("the client state has keys of the model: it is in unishard.catalog only");
  return std::move(*layout);
}

const std::string* training_text(const Json& object) {
  const Json* const ours = member(object, kOurKey);
  const Json* const text = ours == nullptr ? nullptr : member(*ours, "catalog");
  return text == nullptr ? nullptr : text->get_ptr<const std::string*>();
}

}  // namespace unishard::converters::torch
