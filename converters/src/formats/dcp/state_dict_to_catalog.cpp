#include "formats/dcp/state_dict_to_catalog.hpp"

#include "unishard/converters/optimizer_scalars.hpp"
#include "unishard/format/error.hpp"

#include "containers/pickle_json.hpp"
#include "formats/dcp/client_tree.hpp"
#include "formats/dcp/embedded_catalog.hpp"
#include "formats/dcp/entry_values.hpp"
#include "formats/dcp/groups.hpp"
#include "formats/dcp/keys.hpp"
#include "formats/dcp/raw_names.hpp"
#include "formats/dcp/scalar_states.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <unordered_map>
#include <unordered_set>

namespace unishard::converters::dcp {
namespace {

constexpr std::string_view kTrainState = "train_state", kTrainStep = "train_state.step";

/// Upper bound on steps: float64 holds whole numbers exactly up to here.
constexpr double kLargestStep = 9007199254740992.0;

bool is_wide_float(DType dtype) { return dtype == DType::Float32 || dtype == DType::Float64; }

class Arranger {
 public:
  Arranger(const StateDict& state, std::string where)
      : state_(state),
        where_(std::move(where)),
        prefixes_(optimizer_prefixes(state)),
        groups_(prefixes_.size()) {}

  Arrangement run() {
    out_.notes = state_.notes;
    out_.catalog.world_size = state_.world_size;
    out_.catalog.producer = state_.producer;
    out_.catalog.scheduler = state_.scheduler;
    sort_keys();
    name_model();
    name_raw_states();
    add_groups();
    find_ties();
    add_second_keys();
    add_model();
    add_lonely_states();
    add_extras();
    add_step();
    add_scalars();
    if (!client_.empty()) out_.catalog.client_state = client_.json();
    set_stage();
    return std::move(out_);
  }

 private:
  struct State {
    std::size_t entry = 0;
    OptimizerKey key;
    bool is_used = false;
  };
  struct Parameter {
    std::size_t entry = 0;
    std::string fqn;
  };

  const TensorEntry& entry(std::size_t index) const { return state_.tensors[index]; }

  void sort_keys() {
    for (const ObjectEntry& object : state_.objects) sort_object(object);
    for (std::size_t i = 0; i < state_.tensors.size(); ++i) {
      const TensorEntry& tensor = entry(i);
      if (auto key = parse_state_key(tensor.key, tensor.path, prefixes_)) {
        states_.push_back({i, std::move(*key)});
      } else if (const auto group = parse_group_key(tensor.key, tensor.path, prefixes_);
                 group && !group->setting.empty() && element_count(tensor.shape) == 1) {
        const auto value = scalar(tensor, *state_.items);
        if (value) groups_.add(*group, *value);
      } else if (is_train_step(tensor)) {
        take_train_step(tensor);
      } else {
        others_.push_back(i);
      }
    }
  }

  bool is_train_step(const TensorEntry& tensor) const {
    return tensor.key == kTrainStep && scalar(tensor, *state_.items) &&
           std::ranges::count(state_.objects, kTrainState, &ObjectEntry::key) == 0;
  }

  /// torchtitan's counter, a number or a tensor. It is no parameter, whatever the model's keys are.
  void take_train_step(const TensorEntry& tensor) {
    train_step_ = scalar(tensor, *state_.items);
    if (train_step_)
      keep(tensor.key, {{"train_state", false}, {"step", false}},
           static_cast<std::int64_t>(*train_step_));
  }

  void sort_object(const ObjectEntry& object) {
    if (const auto key = parse_group_key(object.key, object.path, prefixes_))
      return groups_.add(*key, object.value);
    if (auto key = parse_state_key(object.key, object.path, prefixes_);
        key && torch::tensors_in(object.value).empty())
      return scalars_.add(std::move(*key), object.value);
    const auto optimizer = std::ranges::find(prefixes_, object.key.empty() ? "" : object.key + ".");
    if (optimizer != prefixes_.end() && object.value.is_object() &&
        object.value.contains("param_groups"))
      return sort_optimizer(object, static_cast<std::size_t>(optimizer - prefixes_.begin()));
    if (object.key == kTrainStep && object.value.is_number())
      train_step_ = object.value.get<double>();
    if (object.key == kTrainState && object.value.is_object() && object.value.contains("step") &&
        object.value["step"].is_number())
      train_step_ = object.value["step"].get<double>();
    const auto states = std::ranges::find_if(
        prefixes_, [&](const std::string& prefix) { return object.key == prefix + "state"; });
    if (states != prefixes_.end() && object.value.is_object() && !object.value.empty())
      return take_states(static_cast<std::size_t>(states - prefixes_.begin()), object.value);
    keep(object.key, object.path, object.value);
  }

  /// An optimizer's state_dict() as one object, whose tensors are entries of their own.
  void sort_optimizer(const ObjectEntry& object, std::size_t index) {
    for (const auto& [name, value] : object.value.items()) {
      if (name == "param_groups") {
        groups_.add({index, std::nullopt, {}, {}}, value);
      } else if (name == "state") {
        take_states(index, value);
      } else if (name != kTextKey) {
        KeyPath path = object.path;
        path.push_back({name, false});
        keep(fmt::format("{}.{}", object.key, name), path, value);
      }
    }
  }

  void take_states(std::size_t optimizer, const Json& states) {
    scalars_.add_all(optimizer, states, out_.notes);
  }

  void keep(const std::string& key, const KeyPath& path, Json value) {
    named_.merge(torch::tensors_in(value));
    const KeyPath flat = {{key, false}};
    if (!client_.insert(path.empty() ? flat : path, value) &&
        !client_.insert(flat, std::move(value))) {
      out_.notes.push_back(fmt::format("left out: {} (its place in the state dict is taken)", key));
    }
  }

  void name_model() {
    std::vector<std::string> fqns;
    fqns.reserve(states_.size());
    for (const State& state : states_) {
      if (!is_number(state.key.fqn)) fqns.push_back(state.key.fqn);
    }
    std::vector<const TensorEntry*> tensors;
    tensors.reserve(others_.size());
    for (const std::size_t i : others_) tensors.push_back(&entry(i));
    model_prefix_ = model_prefix(tensors, fqns, numbered_shapes(), out_.remarks);
    const std::string& prefix = model_prefix_;
    // Without a prefix the model's names are keys of the top level, if there are any.
    const bool top_only = prefix.empty() && std::ranges::any_of(tensors, [](const TensorEntry* t) {
                            return t->path.size() <= 1;
                          });
    std::unordered_set<std::string> used;
    for (const std::size_t i : others_) {
      auto name = model_name(entry(i), prefix);
      if (!name || (top_only && entry(i).path.size() > 1)) {
        extras_.push_back(i);
        continue;
      }
      if (std::string plain = without_wrappers(*name); !used.contains(plain))
        name = std::move(plain);
      used.insert(*name);
      model_.push_back({i, std::move(*name)});
    }
  }

  /// The shapes of the parameters that an optimizer knows by numbers.
  std::vector<Shape> numbered_shapes() const {
    std::vector<Shape> shapes;
    std::unordered_set<std::string> known;
    for (const State& state : states_) {
      if (!is_number(state.key.fqn) || state.key.state == kStep) continue;
      if (known.insert(fmt::format("{}\n{}", state.key.optimizer, state.key.fqn)).second)
        shapes.push_back(entry(state.entry).shape);
    }
    return shapes;
  }

  /// Gives the states "0", "1", ... the parameters' names when only one choice fits, else
  /// "state.0", ...
  void name_raw_states() {
    for (std::size_t o = 0; o < prefixes_.size(); ++o) {
      std::unordered_map<std::string, Shape> shapes;
      bool is_raw = false;
      for (const State& state : states_) {
        if (state.key.optimizer != o || !is_number(state.key.fqn)) continue;
        is_raw = true;
        if (state.key.state != kStep) shapes.emplace(state.key.fqn, entry(state.entry).shape);
      }
      is_raw = is_raw || !scalars_.numbers(o).empty();
      // SGD has no states, and its groups have numbers all the same.
      if (state_.number_names.fit) {
        for (const Json& group : groups_.groups(o))
          is_raw = is_raw || std::ranges::any_of(group["params"], &Json::is_number_integer);
      }
      if (is_raw) name_raw_states(o, shapes);
    }
    for (State& state : states_) {
      state.key.fqn = without_wrappers(raw_name(state.key.optimizer, state.key.fqn));
    }
  }

  void name_raw_states(std::size_t optimizer,
                       const std::unordered_map<std::string, Shape>& shapes) {
    const std::vector<Json> groups = groups_.groups(optimizer);
    const NumberedParameters parameters = numbered_parameters(groups, shapes);
    const std::vector<std::string>& numbers = parameters.numbers;
    std::vector<NamedShape> model;
    for (const Parameter& parameter : model_) {
      if (!is_statistic(parameter.fqn))
        model.push_back({parameter.fqn, entry(parameter.entry).shape});
    }
    const std::vector<std::string> listed = listed_names(groups);
    const bool is_in_order = !state_.number_names.fit;
    const auto names = !listed.empty() ? fit_listed(listed, parameters, model)
                       : is_in_order   ? fit_by_shape(parameters, model)
                                       : state_.number_names.fit(parameters, model);
    const std::string prefix = prefixes_.size() == 1 ? "" : prefixes_[optimizer];
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      raw_names_[fmt::format("{}\n{}", optimizer, numbers[i])] =
          names ? (*names)[i] : fmt::format("{}state.{}", prefix, numbers[i]);
    }
    if (!names) {
      out_.remarks.push_back(
          fmt::format("the optimizer's {} states have numbers and no names that fit the model: "
                      "called state.0, state.1, ...; {}",
                      numbers.size(),
                      is_in_order ? "save with get_state_dict to keep the names"
                                  : state_.number_names.undecided));
    } else if (listed.empty()) {
      out_.remarks.push_back(
          fmt::format("the optimizer's {} states have numbers: named in the order of the model, "
                      "in which their shapes fit in one way only. If the optimizer was given its "
                      "parameters in another order, save with their names (get_state_dict)",
                      numbers.size()));
    }
  }

  std::string raw_name(std::size_t optimizer, const std::string& name) const {
    const auto found = raw_names_.find(fmt::format("{}\n{}", optimizer, name));
    return found == raw_names_.end() ? name : found->second;
  }

  void add_groups() {
    Json all = Json::array();
    for (std::size_t o = 0; o < prefixes_.size(); ++o) {
      for (Json& group : groups_.groups(o)) {
        for (Json& parameter : group["params"]) {
          const std::string name =
              parameter.is_string() ? parameter.get<std::string>() : parameter.dump();
          parameter = without_wrappers(raw_name(o, name));
          group_of_[parameter.get<std::string>()] = static_cast<std::int32_t>(all.size());
        }
        drop_tensors(group, all.size(), out_.notes);
        all.push_back(std::move(group));
      }
    }
    if (!all.empty()) out_.catalog.groups = std::move(all);
    for (std::size_t i = 0; i < states_.size(); ++i) states_of_[states_[i].key.fqn].push_back(i);
  }

  bool are_equal(std::size_t a, std::size_t b) const {
    return state_.is_equal ? state_.is_equal(a, b) : equal_bytes(entry(a), entry(b), *state_.items);
  }

  /// A tied parameter is stored under each of its names, and the optimizer knows one of them.
  void find_ties() {
    if (states_.empty()) return;
    std::vector<const Parameter*> trained;
    for (const Parameter& parameter : model_) {
      if (states_of_.contains(parameter.fqn)) trained.push_back(&parameter);
    }
    const auto is_second_name = [&](const Parameter& parameter) {
      const TensorEntry& tensor = entry(parameter.entry);
      if (states_of_.contains(parameter.fqn) || group_of_.contains(parameter.fqn) ||
          tensor.shape.size() < 2 || element_count(tensor.shape) == 0)
        return false;
      for (const Parameter* other : trained) {
        const TensorEntry& target = entry(other->entry);
        if (target.dtype != tensor.dtype || target.shape != tensor.shape ||
            !are_equal(parameter.entry, other->entry))
          continue;
        out_.catalog.aliases.push_back({parameter.fqn, other->fqn});
        out_.copies.emplace_back(parameter.entry, other->entry);
        out_.remarks.push_back(
            fmt::format("{} has the bytes of {} and no optimizer state: taken for its second name",
                        parameter.fqn, other->fqn));
        return true;
      }
      return false;
    };
    std::vector<Parameter> kept;
    for (const Parameter& parameter : model_) {
      if (!is_second_name(parameter)) kept.push_back(parameter);
    }
    model_ = std::move(kept);
  }

  /// The model's tensors with two keys become aliases; of other tensors the first key counts.
  void add_second_keys() {
    std::unordered_map<std::string_view, const Parameter*> model;
    for (const Parameter& parameter : model_) model.emplace(entry(parameter.entry).key, &parameter);
    for (const SecondKey& second : state_.second_keys) {
      const auto first = model.find(second.of);
      const auto name = first == model.end() ? std::nullopt : below_model(second.key);
      if (name) {
        out_.catalog.aliases.push_back({without_wrappers(*name), first->second->fqn});
      } else {
        keep(second.key, second.path, {{"$tensor", second.of}});
      }
    }
  }

  std::optional<std::string> below_model(const std::string& key) const {
    if (!key.starts_with(model_prefix_) || key.size() == model_prefix_.size()) return std::nullopt;
    return key.substr(model_prefix_.size());
  }

  void add(std::size_t index, std::string fqn, std::string_view state, bool frozen) {
    TensorInfo tensor;
    const auto group = group_of_.find(fqn);
    if (group != group_of_.end()) tensor.group = group->second;
    tensor.fqn = std::move(fqn);
    tensor.state = state;
    tensor.dtype = entry(index).dtype;
    tensor.shape = entry(index).shape;
    tensor.frozen = frozen;
    out_.catalog.tensors.push_back(std::move(tensor));
    out_.entries.push_back(index);
  }

  /// `halves`: add the 16-bit weights that UniShard's sink stores among the states, or all others.
  void add_states(const std::string& fqn, bool halves) {
    const auto found = states_of_.find(fqn);
    if (found == states_of_.end()) return;
    for (const std::size_t i : found->second) {
      State& state = states_[i];
      const bool is_half = state.key.state == kHalfState;
      if (state.is_used || is_half != halves || is_step(state)) continue;
      state.is_used = true;
      add(state.entry, fqn, is_half ? state::kWeights : std::string_view(state.key.state), false);
    }
  }

  bool is_step(const State& state) const {
    return state.key.state == kStep && element_count(entry(state.entry).shape) == 1;
  }

  /// Megatron-Core stores the fp32 master among the states.
  bool has_master(const std::string& fqn) const {
    return std::ranges::any_of(states_of_.at(fqn), [&](std::size_t index) {
      return states_[index].key.state == state::kFp32;
    });
  }

  void add_model() {
    const bool is_trained =
        std::ranges::any_of(model_, [&](const Parameter& p) { return states_of_.contains(p.fqn); });
    for (const Parameter& parameter : model_) {
      const bool has_states = states_of_.contains(parameter.fqn);
      const bool is_fp32 =
          has_states && !has_master(parameter.fqn) && is_wide_float(entry(parameter.entry).dtype);
      if (is_fp32) add(parameter.entry, parameter.fqn, state::kFp32, false);
      add_states(parameter.fqn, false);
      if (is_fp32) {
        add_states(parameter.fqn, true);
        continue;
      }
      const Kind kind = info(entry(parameter.entry).dtype).kind;
      const bool trains = kind == Kind::Float || kind == Kind::Complex;  // what can be trained
      const bool is_buffer = !has_states && (!trains || is_statistic(parameter.fqn));
      add(parameter.entry, parameter.fqn, is_buffer ? state::kBuffer : state::kWeights,
          is_trained && !has_states && !is_buffer);
    }
  }

  /// Adds states of parameters that the model lacks: an optimizer that was saved alone.
  void add_lonely_states() {
    for (std::size_t i = 0; i < states_.size(); ++i) {
      if (states_[i].is_used) continue;
      const std::string fqn = states_[i].key.fqn;
      add_states(fqn, false);
      add_states(fqn, true);
    }
  }

  void add_extras() {
    for (const std::size_t i : extras_) {
      const TensorEntry& tensor = entry(i);
      if (!named_.contains(tensor.key)) keep(tensor.key, tensor.path, {{"$tensor", tensor.key}});
      add(i, tensor.key, kExtraState, false);
    }
  }

  void take_step(double value) {
    if (!(value >= 0 && value <= kLargestStep)) {
      out_.notes.push_back(fmt::format("{}: a step counter of {} was left out", where_, value));
      return;
    }
    steps_.push_back(value);
  }

  void add_step() {
    for (const double value : scalars_.steps()) take_step(value);
    for (const State& state : states_) {
      if (!is_step(state)) continue;
      const auto value = scalar(entry(state.entry), *state_.items);
      if (!value) continue;
      take_step(*value);
      tensor_steps_.push_back({state.key.fqn, *value});
    }
    if (steps_.empty() && state_.step) take_step(*state_.step);
    if (steps_.empty() && train_step_) take_step(*train_step_);
    if (steps_.empty()) return;
    const auto [low, high] = std::ranges::minmax(steps_);
    out_.catalog.step = static_cast<std::int64_t>(high);
    if (low != high)
      out_.notes.push_back(
          fmt::format("the optimizer's step counters differ between parameters ({} to {}): the "
                      "largest is taken",
                      low, high));
  }

  void add_scalars() {
    bool is_known = false;  // an optimizer of which everybody knows whether it counts
    std::vector<std::string> stateful;
    for (const State& state : states_) {
      is_known |= state.key.state == state::kExpAvgSq || state.key.state == "momentum_buffer";
      if (!is_step(state)) stateful.push_back(state.key.fqn);
    }
    const auto name_of = [&](const OptimizerKey& key) {
      return without_wrappers(raw_name(key.optimizer, key.fqn));
    };
    Json scalars = scalars_.json(name_of, tensor_steps_, stateful, is_known);
    const std::string key(kOptimizerScalars);
    if (!scalars.empty()) keep(key, {{key, false}}, std::move(scalars));
  }

  /// FSDP shards parameters as ZeRO stage 3 does; a tensor in one piece was not sharded.
  void set_stage() {
    const auto is_cut = [&](std::size_t index) { return entry(index).chunks.size() > 1; };
    if (std::ranges::any_of(model_, [&](const Parameter& p) { return is_cut(p.entry); })) {
      out_.catalog.stage = 3;
    } else if (std::ranges::any_of(states_, [&](const State& s) { return is_cut(s.entry); })) {
      out_.catalog.stage = 1;
    }
  }

  const StateDict& state_;
  const std::string where_;
  const std::vector<std::string> prefixes_;
  GroupCollector groups_;
  ClientTree client_;
  std::set<std::string> named_;  // tensors in it
  std::string model_prefix_;
  std::vector<State> states_;
  std::vector<Parameter> model_;
  std::vector<std::size_t> others_, extras_;
  std::vector<double> steps_;
  ScalarStates scalars_;
  std::vector<ScalarStates::TensorStep> tensor_steps_;
  std::optional<double> train_step_;
  std::unordered_map<std::string, std::string> raw_names_;  // "<optimizer>\n<number>" -> name
  std::unordered_map<std::string, std::vector<std::size_t>> states_of_;
  std::unordered_map<std::string, std::int32_t> group_of_;
  Arrangement out_;
};

}  // namespace

Arrangement arrange(const StateDict& state, const std::string& where) {
  if (auto own = arrange_own(state, where)) return std::move(*own);
  Arrangement out = Arranger(state, where).run();
  if (state.complete) state.complete(state, out);
  return out;
}

}  // namespace unishard::converters::dcp
