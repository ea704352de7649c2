#include "formats/dcp/state_dict_to_catalog.hpp"

#include "unishard/converters/adapter_names.hpp"
#include "unishard/converters/guessed_ties.hpp"
#include "unishard/converters/optimizer_scalars.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/text.hpp"

#include "containers/inline_tensors.hpp"
#include "containers/pickle_json.hpp"
#include "containers/plain_settings.hpp"
#include "core/adam_settings.hpp"
#include "core/key_text.hpp"
#include "core/later_changes.hpp"
#include "core/nested_states.hpp"
#include "formats/dcp/attribution.hpp"
#include "formats/dcp/client_tree.hpp"
#include "formats/dcp/embedded_catalog.hpp"
#include "formats/dcp/entry_values.hpp"
#include "formats/dcp/groups.hpp"
#include "formats/dcp/key_layout.hpp"
#include "formats/dcp/keys.hpp"
#include "formats/dcp/raw_names.hpp"
#include "formats/dcp/scalar_states.hpp"
#include "formats/dcp/unnamed_weights.hpp"
#include "reading/broken_files.hpp"
#include "reading/parameter_shape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

namespace unishard::converters::dcp {
namespace {

constexpr std::string_view kTrainState = "train_state", kTrainStep = "train_state.step";
/// Key under which a module keeps what is no parameter.
constexpr std::string_view kModuleState = "_extra_state";

/// Upper bound on steps: float64 holds whole numbers exactly up to here.
constexpr double kLargestStep = 9007199254740992.0;

bool is_wide_float(DType dtype) { return dtype == DType::Float32 || dtype == DType::Float64; }

/// An optimizer that is kept as a value of the user's.
struct SetAside {
  std::string prefix;  ///< of its keys: "optim."
  std::string_view reason;
};

constexpr std::string_view kUndecided =
    "nothing tells for certain of which parameters its states are";

/// Returns whether the state dict tells that this is a value.
bool is_value(const StateDict& state, std::string_view key) {
  return state.values.contains(std::string(key.substr(0, key.find('.'))));
}

class Arranger {
 public:
  /// `prefixes` are those of the optimizers, `set_aside` those of optimizers that are kept as
  /// values.
  Arranger(const StateDict& state, std::string where, std::vector<std::string> prefixes,
           const std::vector<SetAside>& set_aside)
      : state_(state),
        where_(std::move(where)),
        prefixes_(std::move(prefixes)),
        set_aside_(set_aside),
        groups_(prefixes_.size()) {
    out_.notes = state_.notes;
    out_.losses = state_.losses;
    note_opaque();
    for (const SecondKey& second : state_.second_keys) first_keys_.emplace(second.key, second.of);
    sort_keys();
  }

  /// Decides which parameters there are and whose the states are. Returns the optimizers for which
  /// that cannot be decided.
  std::vector<std::string> attribute_states() {
    std::vector<OptimizerClaims> claims;
    for (std::size_t o = 0; o < prefixes_.size(); ++o) {
      claims.push_back({prefixes_[o], groups_.groups(o), {}});
      for (const std::string& name : scalars_.names(o)) claims[o].parameters[name];
    }
    std::map<std::pair<std::size_t, std::string>, std::map<std::string, Shape>> shapes;
    for (const State& state : states_) {
      auto& of_states = shapes[{state.key.optimizer, state.key.fqn}];
      if (state.key.state != kStep) of_states.emplace(state.key.state, entry(state.entry).shape);
    }
    for (const auto& [parameter, of_states] : shapes) {
      auto& shape = claims[parameter.first].parameters[parameter.second];
      if (of_states.empty()) continue;
      shape = parameter_shape(of_states);
      shapes_.emplace(parameter, *shape);
    }
    attribution_ = attribute(state_, others_, claims);
    std::vector<std::string> undecided;
    undecided.reserve(attribution_.undecided.size());
    for (const std::size_t o : attribution_.undecided) undecided.push_back(prefixes_[o]);
    return undecided;
  }

  Arrangement finish() {
    out_.catalog.world_size = state_.world_size;
    out_.catalog.producer = state_.producer;
    out_.catalog.scheduler = state_.scheduler;
    take_attribution();
    add_groups();
    join_repeated_states();
    find_ties();
    add_model();
    add_lonely_states();
    lose_unsaved_weights();
    add_extras();
    add_step();
    add_scalars();
    add_losses();
    lose_unnamed_weights();
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
  using Parameter = Attribution::Parameter;

  const TensorEntry& entry(std::size_t index) const { return state_.tensors[index]; }

  /// An object among the states of a parameter is lost, which add_state() says, or a value.
  void note_opaque() {
    for (const auto& [key, line] : state_.opaque) {
      const std::string path = fmt::format("{}.{}", key, line);
      const auto is_above = [&](const std::string& prefix) {
        return path.starts_with(prefix + "state.");
      };
      if (std::ranges::none_of(prefixes_, is_above))
        out_.notes.push_back(fmt::format("kept as its parts, not as an object: {}: {}", key, line));
    }
  }

  void sort_keys() {
    find_states();
    for (State& state : states_) rename_reserved(state.key.state);
  }

  /// A state of an optimizer that is called as the catalog calls weights is none of these, except
  /// for the masters that some programs keep among the states.
  void rename_reserved(std::string& state) {
    if (!is_reserved_state(state) || (state == state::kFp32 && state_.has_masters)) return;
    RenamedState renamed = rename_reserved_state(state);
    if (std::ranges::count(out_.notes, renamed.note) == 0)
      out_.notes.push_back(std::move(renamed.note));
    state = std::move(renamed.name);
  }

  void find_states() {
    for (const ObjectEntry& object : state_.objects) sort_object(object);
    for (std::size_t i = 0; i < state_.tensors.size(); ++i) {
      const TensorEntry& tensor = entry(i);
      if (const auto* const known = scalars_.find_tensor(tensor.key)) {
        if (*known) states_.push_back({i, **known});
      } else if (is_set_aside(tensor.key)) {
        extras_.push_back(i);
        const bool is_counter = tensor.key.ends_with(".step") && element_count(tensor.shape) == 1;
        const auto value = is_counter ? counter(tensor) : std::nullopt;
        if (value) other_step_ = std::max(other_step_.value_or(0), *value);
      } else if (auto key = parse_state_key(tensor.key, tensor.path, prefixes_)) {
        scalars_.add_part(*key, tensor.path, state_mark(key->state));
        states_.push_back({i, std::move(*key)});
      } else if (const auto group = parse_group_key(tensor.key, tensor.path, prefixes_);
                 group && !group->setting.empty() && element_count(tensor.shape) == 1) {
        const auto value = scalar(tensor, *state_.items);
        if (!value) continue;
        groups_.add(*group, *value);
        settings_in_tensors_.push_back(tensor.key);
      } else if (is_train_step(tensor)) {
        take_train_step(tensor);
      } else {
        others_.push_back(i);
      }
    }
    scalars_.join_parts();
  }

  bool is_set_aside(const std::string& key) const {
    return is_value(state_, key) || std::ranges::any_of(set_aside_, [&](const SetAside& each) {
             return key.starts_with(each.prefix + "state.") ||
                    key.starts_with(each.prefix + "param_groups");
           });
  }

  bool is_train_step(const TensorEntry& tensor) const {
    return tensor.key == kTrainStep && scalar(tensor, *state_.items) &&
           std::ranges::count(state_.objects, kTrainState, &ObjectEntry::key) == 0;
  }

  /// Takes torchtitan's counter, which is no parameter, whatever the model's keys are. It stays a
  /// tensor, because torchtitan loads it as one.
  void take_train_step(const TensorEntry& tensor) {
    train_step_ = scalar(tensor, *state_.items);
    torch::InlineTensor counter{tensor.dtype, tensor.shape, {}};
    counter.bytes.resize(size_of(tensor.dtype));
    read_elements(tensor, *state_.items, {0, 1}, counter.bytes);
    keep(tensor.key, {{"train_state", false}, {"step", false}}, torch::inline_form(counter));
  }

  void sort_object(const ObjectEntry& object) {
    if (is_value(state_, object.key)) return keep(object.key, object.path, object.value);
    if (const auto key = parse_group_key(object.key, object.path, prefixes_))
      return groups_.add(*key, object.value);
    if (auto key = parse_state_key(object.key, object.path, prefixes_);
        key && torch::tensors_in(object.value).empty()) {
      scalars_.add_part(*key, object.path, object.value);
      return scalars_.add(std::move(*key), object.value);
    }
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
    scalars_.add_all(optimizer, states, out_.losses);
  }

  void keep(const std::string& key, const KeyPath& path, Json value) {
    named_.merge(torch::tensors_in(value));
    name_once(value);
    place(key, path, std::move(value));
  }

  /// Names the tensors in the value by the keys under which they are read.
  void name_once(Json& value) const {
    if (first_keys_.empty() || !value.is_structured()) return;
    if (value.is_object() && value.contains("$tensor")) {
      const auto first = first_keys_.find(value["$tensor"].get<std::string>());
      if (first != first_keys_.end()) value["$tensor"] = first->second;
      return;
    }
    for (Json& child : value) name_once(child);
  }

  /// Returns the place of a tensor or a second key.
  template <class Keyed>
  static const KeyPath& place_of(const Keyed& keyed) {
    return keyed.place.empty() ? keyed.path : keyed.place;
  }

  void place(const std::string& key, const KeyPath& path, Json value) {
    const KeyPath flat = {{key, false}};
    if (!client_.insert(path.empty() ? flat : path, value) &&
        !client_.insert(flat, std::move(value))) {
      out_.losses.push_back({Role::ClientValue, key, "its place in the state dict is taken"});
    }
  }

  void take_attribution() {
    model_ = std::move(attribution_.model);
    extras_.insert(extras_.end(), attribution_.extras.begin(), attribution_.extras.end());
    out_.catalog.aliases = std::move(attribution_.aliases);
    if (attribution_.has_adapter_names)
      record_adapter(out_.catalog.producer, AdapterNaming::Modules);
    for (const SecondKey* second : attribution_.other_second_keys) {
      if (!named_.contains(second->key))
        place(second->key, place_of(*second), {{"$tensor", second->of}});
    }
    out_.remarks = std::move(attribution_.remarks);
    out_.remarks.insert(out_.remarks.end(), state_.remarks.begin(), state_.remarks.end());
    for (std::string& line : attribution_.remarks_on_states) out_.remark_on_states(std::move(line));
    if (!settings_in_tensors_.empty()) out_.remark_on_states(remark_on_settings());
    for (const auto& [prefix, reason] : set_aside_)
      out_.remarks.push_back(fmt::format("{}: {}: kept as values of yours",
                                         prefix.substr(0, prefix.size() - 1), reason));
    for (State& state : states_)
      state.key.fqn = attribution_.fqn_of(state.key.optimizer, state.key.fqn);
  }

  std::string remark_on_settings() const {
    return fmt::format(
        "{} of the optimizer's settings are tensors of one element ({}): where a result has no "
        "place for such a tensor, it has the number",
        settings_in_tensors_.size(), first_names(settings_in_tensors_));
  }

  void add_groups() {
    Json all = Json::array();
    std::set<std::string> seen, twice;  // in one optimizer; a tied parameter has several names
    for (std::size_t o = 0; o < prefixes_.size(); ++o) {
      seen.clear();
      for (Json& group : groups_.groups(o)) {
        Json params = Json::array();
        for (const Json& parameter : group["params"]) {
          if (!seen.insert(key_text(parameter)).second) twice.insert(key_text(parameter));
          std::string name = attribution_.fqn_of(o, key_text(parameter));
          const auto number = static_cast<std::int32_t>(all.size());
          if (group_of_.emplace(name, number).second) params.push_back(std::move(name));
        }
        group["params"] = std::move(params);
        drop_tensors(group, all.size(), out_.notes);
        torch::make_settings_plain(group, all.size(), out_.notes, out_.losses);
        all.push_back(std::move(group));
      }
    }
    if (!twice.empty())
      out_.remark_on_states(
          fmt::format("parameters are in two groups of the optimizer, or twice in one, and the "
                      "first counts: {}",
                      first_names(std::vector<std::string>(twice.begin(), twice.end()))));
    if (!all.empty()) out_.catalog.groups = std::move(all);
    for (std::size_t i = 0; i < states_.size(); ++i) states_of_[states_[i].key.fqn].push_back(i);
  }

  /// An optimizer may list a tied parameter under both of its names.
  void join_repeated_states() {
    for (auto& [fqn, indices] : states_of_) {
      std::unordered_map<std::string_view, std::size_t> first;
      for (const std::size_t i : indices) {
        State& state = states_[i];
        const auto [known, is_new] = first.emplace(state.key.state, state.entry);
        if (is_new || is_step(state)) continue;
        state.is_used = true;
        if (entry(known->second).dtype == entry(state.entry).dtype &&
            entry(known->second).shape == entry(state.entry).shape &&
            are_equal(known->second, state.entry)) {
          out_.copies.emplace_back(state.entry, known->second);
          continue;
        }
        keep(entry(state.entry).key, {}, {{"$tensor", entry(state.entry).key}});
        extras_.push_back(state.entry);
        out_.remarks.push_back(
            fmt::format("{}: {} has another one of the same parameter: kept as a value",
                        entry(state.entry).key, entry(known->second).key));
      }
    }
  }

  bool are_equal(std::size_t a, std::size_t b) const {
    return state_.is_equal ? state_.is_equal(a, b) : equal_bytes(entry(a), entry(b), *state_.items);
  }

  /// A tied parameter is stored under each of its names, and the optimizer knows one of them.
  void find_ties() {
    std::vector<const Parameter*> trained;
    for (const Parameter& parameter : model_) {  // SGD without momentum has groups and no states
      if (states_of_.contains(parameter.fqn) || group_of_.contains(parameter.fqn))
        trained.push_back(&parameter);
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
        for (Alias& alias : out_.catalog.aliases) {
          if (alias.target == parameter.fqn) alias.target = other->fqn;
        }
        out_.catalog.aliases.push_back({parameter.fqn, other->fqn});
        out_.copies.emplace_back(parameter.entry, other->entry);
        out_.catalog.producer[kGuessedTies].push_back(parameter.fqn);
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

  /// Whether an optimizer keeps the states of all its parameters, in flat vectors, as those of the
  /// first: torch.optim.LBFGS.
  bool has_joint_states() const {
    return std::ranges::any_of(
        states_, [](const State& state) { return state.key.state == "prev_flat_grad"; });
  }

  /// Megatron-Core and nanotron store the fp32 master among the states.
  bool has_master(const std::string& fqn) const {
    const auto found = states_of_.find(fqn);
    return found != states_of_.end() && std::ranges::any_of(found->second, [&](std::size_t index) {
             return states_[index].key.state == state::kFp32;
           });
  }

  /// Whether the groups of an optimizer without states, SGD's, list the model's parameters by their
  /// names: what they do not list is frozen.
  bool tells_all_trained() const {
    std::unordered_set<std::string_view> known;
    for (const Parameter& parameter : model_) known.insert(parameter.fqn);
    for (const Alias& alias : out_.catalog.aliases) known.insert(alias.fqn);
    return set_aside_.empty() && !group_of_.empty() &&
           std::ranges::all_of(group_of_,
                               [&](const auto& listed) { return known.contains(listed.first); });
  }

  void add_model() {
    // An optimizer that is set aside trains parameters, too: without states of it nothing is
    // frozen.
    const bool is_told = !state_.has_other_optimizers && tells_all_trained();
    const bool is_trained =
        set_aside_.empty() && !state_.has_other_optimizers && !has_joint_states() &&
        std::ranges::any_of(model_, [&](const Parameter& p) { return states_of_.contains(p.fqn); });
    std::vector<std::string> unstarted;
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
      const TensorEntry& tensor = entry(parameter.entry);
      const bool is_weight =
          has_states ||
          (may_be_trained(tensor.dtype) &&
           (group_of_.contains(parameter.fqn) || !is_buffer(state_, tensor, parameter.fqn)));
      add(parameter.entry, parameter.fqn, is_weight ? state::kWeights : state::kBuffer,
          is_weight && !has_states &&
              (is_trained || (is_told && !group_of_.contains(parameter.fqn))));
      if (is_weight && !has_states && is_trained && group_of_.contains(parameter.fqn))
        unstarted.push_back(parameter.fqn);
    }
    if (!unstarted.empty())
      out_.remarks.push_back(fmt::format(
          "the optimizer lists {} parameters without a state, {} first: they are taken for frozen",
          unstarted.size(), unishard::quote(unstarted.front())));
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

  /// Returns the names of the parameters that optimizers train, as far as they tell them.
  std::set<std::string> trained_names() const {
    std::set<std::string> names;
    for (const State& state : states_) {
      if (!is_step(state) && !is_numbered(state.key.fqn)) names.insert(state.key.fqn);
    }
    for (std::size_t o = 0; o < prefixes_.size(); ++o) {
      const std::vector<std::string> listed = listed_names(groups_.groups(o));
      names.insert(listed.begin(), listed.end());
    }
    return names;
  }

  /// Where an optimizer trains parameters of the model by their names, one that the model lacks is
  /// missing, unless a tensor elsewhere, not in a copy of the model, has its name. Where the model
  /// lacks most of them, that is a doubt.
  void lose_unsaved_weights() {
    std::unordered_set<std::string_view> known;
    for (const Parameter& parameter : model_) known.insert(parameter.fqn);
    for (const Alias& alias : out_.catalog.aliases) known.insert(alias.fqn);
    const auto is_known = [&](std::string_view fqn) {
      return known.contains(fqn) || known.contains(without_replica(fqn));
    };
    std::set<std::string> lonely = trained_names();
    const std::size_t told = std::erase_if(lonely, is_known);
    const std::unordered_set<std::string_view> elsewhere = names_elsewhere(known);
    std::erase_if(lonely, [&](const auto& fqn) { return elsewhere.contains(fqn); });
    if (told < lonely.size()) return remark_on_unsaved(lonely, told);
    for (const std::string& fqn : lonely) out_.losses.push_back(unsaved_weight(fqn));
  }

  /// Returns what may be names of tensors beside the model, but not in a copy of it, which has
  /// names of the model's tensors.
  std::unordered_set<std::string_view> names_elsewhere(
      const std::unordered_set<std::string_view>& known) const {
    std::unordered_set<std::string_view> copies, names;
    for (const std::size_t i : extras_) {
      each_ending(entry(i).key, [&](std::string_view prefix, std::string_view name) {
        if (known.contains(name)) copies.insert(prefix);
      });
    }
    for (const std::size_t i : extras_) {
      each_ending(entry(i).key, [&](std::string_view prefix, std::string_view name) {
        if (!copies.contains(prefix)) names.insert(name);
      });
    }
    return names;
  }

  /// Calls `take` with all that a key may begin with, "" and "ema.", and the name behind it.
  template <class Take>
  static void each_ending(std::string_view key, const Take& take) {
    for (std::size_t at = 0;;) {
      take(key.substr(0, at), key.substr(at));
      const std::size_t dot = key.find('.', at);
      if (dot == key.npos) return;
      at = dot + 1;
    }
  }

  /// An optimizer may train another model too: what most of its parameters are is not certain.
  void remark_on_unsaved(const std::set<std::string>& lonely, std::size_t told) {
    if (told == 0) return;  // it is an optimizer of another model
    out_.remarks.push_back(fmt::format(
        "the optimizer names {} parameters that the model lacks, {} first, and {} that it has: "
        "weights are missing, or the optimizer trains another model too",
        lonely.size(), unishard::quote(*lonely.begin()), told));
  }

  /// Where an optimizer knows parameters by numbers, their count may tell that some are missing.
  void lose_unnamed_weights() {
    const auto is_lost = [](const Loss& loss) { return is_weight(loss.role); };
    if (prefixes_.size() != 1 || state_.part_of || std::ranges::any_of(out_.losses, is_lost))
      return;
    const UnnamedWeights found = find_unnamed_weights(trained_shapes());
    if (found.loss) out_.losses.push_back(*found.loss);
    if (found.remark) out_.remarks.push_back(*found.remark);
  }

  TrainedShapes trained_shapes() const {
    TrainedShapes shapes;
    for (const auto& [parameter, shape] : shapes_) {
      if (element_count(shape) > 0 &&
          is_numbered(attribution_.fqn_of(parameter.first, parameter.second)))
        shapes.numbered.push_back(shape);
    }
    for (const Parameter& parameter : model_) {
      const TensorEntry& tensor = entry(parameter.entry);
      if (may_be_trained(tensor.dtype) && element_count(tensor.shape) > 0 &&
          (attribution_.trains_statistics || !is_statistic(parameter.fqn)))
        shapes.model.push_back(tensor.shape);
    }
    for (const std::size_t i : extras_) shapes.elsewhere.push_back(entry(i).shape);
    const bool has_other_models = std::ranges::any_of(
        out_.losses, [](const Loss& loss) { return loss.role == Role::OtherModel; });
    shapes.may_train_others = has_other_models || !set_aside_.empty() || !state_.values.empty() ||
                              state_.has_other_optimizers || state_.may_train_others;
    return shapes;
  }

  void add_extras() {
    for (const std::size_t i : extras_) {
      const TensorEntry& tensor = entry(i);
      if (!named_.contains(tensor.key))
        keep(tensor.key, place_of(tensor), {{"$tensor", tensor.key}});
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

  /// Returns the value of a step counter. One that is damaged is lost, and with it what the states
  /// beside it mean. It must have a storage of its own: another tensor may need the damaged one.
  std::optional<double> counter(const TensorEntry& tensor) {
    try {
      return scalar(tensor, *state_.items);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Corrupt || !forget_checksum(tensor)) throw;
      out_.losses.push_back(damaged(Role::Optimizer, tensor.key, error));
      return std::nullopt;
    }
  }

  /// Stops comparing the checksum of a damaged tensor, which nothing reads. Returns false where its
  /// storage holds more than that.
  bool forget_checksum(const TensorEntry& tensor) const {
    const std::uint64_t bytes = size_of(tensor.dtype);
    if (tensor.chunks.size() != 1) return false;
    const auto view = state_.items->tensor(tensor.chunks.front().item, bytes);
    const auto& storage = *view->storage;
    if (!storage.checksum || storage.size() != bytes) return false;
    storage.checksum->ignore();
    return true;
  }

  void add_step() {
    for (const double value : scalars_.steps()) take_step(value);
    for (const State& state : states_) {
      if (!is_step(state)) continue;
      const auto value = counter(entry(state.entry));
      if (!value) continue;
      take_step(*value);
      tensor_steps_.push_back({state.key.fqn, *value});
    }
    remark_on_missing_steps();
    if (steps_.empty() && state_.step) take_step(*state_.step);
    if (steps_.empty() && train_step_) take_step(*train_step_);
    if (steps_.empty() && other_step_) take_step(*other_step_);
    if (steps_.empty()) take_likely_step();
    if (steps_.empty()) return;
    const auto [low, high] = std::ranges::minmax(steps_);
    out_.catalog.step = static_cast<std::int64_t>(high);
    if (low != high)
      out_.notes.push_back(
          fmt::format("the optimizer's step counters differ between parameters ({} to {}): each "
                      "keeps its own, and the largest is the checkpoint's step",
                      low, high));
  }

  /// SGD counts no steps.
  void take_likely_step() {
    const bool has_optimizer = !out_.catalog.groups.is_null() || !states_.empty();
    if (state_.likely_steps.empty() || !has_optimizer) return;
    const auto& [value, teller] = state_.likely_steps.front();
    take_step(value);
    if (!steps_.empty())
      out_.remark_on_states(fmt::format(
          "the optimizer does not count its steps: {}, the step of the checkpoint, is that of {}",
          steps_.front(), teller));
  }

  /// Adam divides its moments by what they lack after so many steps.
  void remark_on_missing_steps() {
    const Json& groups = out_.catalog.groups;
    const auto counts = [](const Json& group) { return group.contains("step"); };
    const bool has_moments = std::ranges::any_of(
        states_, [](const State& state) { return state.key.state == state::kExpAvgSq; });
    if (!steps_.empty() || !has_moments || !groups.is_array()) return;
    if (std::ranges::any_of(groups, counts) || !std::ranges::any_of(groups, has_settings_of_adam))
      return;
    out_.remark_on_states(
        "Adam's moments have no steps: a program that goes on with them begins to count at 0, and "
        "corrects them as if they were new");
  }

  void add_scalars() {
    std::set<std::string_view> names;
    std::vector<std::string> stateful;
    for (const State& state : states_) {
      names.insert(state.key.state);
      if (!is_step(state)) stateful.push_back(state.key.fqn);
    }
    // Of Adam and SGD everybody knows whether they count. Schedule-free AdamW has one moment.
    const bool is_known = names.contains("momentum_buffer") ||
                          (names.contains(state::kExpAvg) && names.contains(state::kExpAvgSq));
    const auto name_of = [&](const OptimizerKey& key) {
      return attribution_.fqn_of(key.optimizer, key.fqn);
    };
    Json scalars = scalars_.json(name_of, tensor_steps_, stateful, is_known);
    const std::string key(kOptimizerScalars);
    if (!scalars.empty()) keep(key, {{key, false}}, std::move(scalars));
  }

  /// The key of what is lost tells what it was.
  void add_losses() {
    const bool has_states =
        std::ranges::any_of(states_, [&](const State& state) { return !is_step(state); });
    for (const LostKey& lost : state_.lost_keys) {
      // When every state of an optimizer is lost, so is the optimizer.
      const Role role = role_of(lost);
      const bool is_all = role == Role::State && !has_states && !is_set_aside(lost.key);
      out_.losses.push_back({is_all ? Role::Optimizer : role, lost.key, lost.why, lost.shape});
    }
    for (const ObjectEntry& object : state_.objects) {
      add_unread_data(object);
      add_emptied_weights(object);
    }
  }

  /// Names what is no tensor in a state dict of the model, unless the reader of the file has.
  void add_emptied_weights(const ObjectEntry& object) {
    Losses found;
    torch::find_emptied_weights(object.value, object.key, found);
    for (Loss& weight : found) {
      const bool is_known = std::ranges::count(out_.losses, weight.name, &Loss::name) > 0 ||
                            std::ranges::count(state_.losses, weight.name, &Loss::name) > 0;
      if (!is_known && !is_value(state_, object.key) && is_of_model(weight.name, {}))
        out_.losses.push_back(std::move(weight));
    }
  }

  /// The weights of a model at the top level are tensors; an array there, or inside of a value
  /// there, is a value of the user's. A storage is lost wherever it is.
  void add_unread_data(const ObjectEntry& object) {
    Losses found;
    torch::find_unread_data(object.value, object.key, found);
    const bool is_flat = std::ranges::count(attribution_.model_prefixes, "") > 0;
    const bool is_top = object.path.size() <= 1;
    for (Loss& data : found) {
      const bool is_weight = !is_value(state_, object.key) && is_of_model(data.name, {}) &&
                             (!is_flat || (is_top && data.name == object.key));
      if (!data.is_kept) {
        data.role = role_of({data.name, object.path, data.why});
      } else if (!is_weight) {
        continue;
      } else if (!is_flat) {
        data.why = "an array of numpy";
        data.is_kept = false;
      }
      out_.losses.push_back(std::move(data));
    }
  }

  Role role_of(const LostKey& lost) const {
    if (is_value(state_, lost.key)) return Role::ClientValue;
    if (is_set_aside(lost.key) || scalars_.find_tensor(lost.key) != nullptr) return Role::State;
    if (parse_group_key(lost.key, lost.path, prefixes_)) return Role::Setting;
    const auto is_below = [&](const std::string& prefix) {
      return !prefix.empty() && lost.key.starts_with(prefix);
    };
    if (parse_state_key(lost.key, lost.path, prefixes_) || std::ranges::any_of(prefixes_, is_below))
      return Role::State;
    if (!is_of_model(lost.key, lost.path)) return Role::ClientValue;
    return lost.key.ends_with(kModuleState) ? Role::Buffer : Role::Weight;
  }

  /// Returns true for a key below a model, and for that of a model as a whole.
  bool is_of_model(const std::string& key, const KeyPath& path) const {
    return std::ranges::any_of(attribution_.model_prefixes, [&](const std::string& prefix) {
      return prefix.empty() ? !is_beside_models(key, path)
                            : key.starts_with(prefix) || key + "." == prefix;
    });
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
  const std::vector<SetAside>& set_aside_;
  GroupCollector groups_;
  ClientTree client_;
  std::set<std::string> named_;                                        // tensors in it
  std::unordered_map<std::string_view, std::string_view> first_keys_;  // of second keys
  Attribution attribution_;
  std::vector<State> states_;
  std::vector<Parameter> model_;
  std::vector<std::size_t> others_, extras_;
  std::vector<double> steps_;
  std::vector<std::string> settings_in_tensors_;                 // keys
  std::map<std::pair<std::size_t, std::string>, Shape> shapes_;  // of parameters, by their states
  ScalarStates scalars_;
  std::vector<ScalarStates::TensorStep> tensor_steps_;
  std::optional<double> train_step_, other_step_;  // the second of optimizers that are set aside
  std::unordered_map<std::string, std::vector<std::size_t>> states_of_;
  std::unordered_map<std::string, std::int32_t> group_of_;
  Arrangement out_;
};

/// Arranges what the keys say, whoever wrote them.
Arrangement arrange_keys(const StateDict& state, const std::string& where) {
  std::vector<std::string> optimizers;
  std::vector<SetAside> set_aside;
  for (std::string& prefix : optimizer_prefixes(state)) {
    if (!is_value(state, prefix)) optimizers.push_back(std::move(prefix));
  }
  Arrangement out;
  for (bool is_decided = false; !is_decided;) {
    Arranger arranger(state, where, optimizers, set_aside);
    const std::vector<std::string> undecided = arranger.attribute_states();
    is_decided = undecided.empty();
    if (is_decided) out = arranger.finish();
    for (const std::string& prefix : undecided) {
      std::erase(optimizers, prefix);
      set_aside.push_back({prefix, kUndecided});
    }
  }
  return out;
}

/// Returns the scalars that the keys of a folder of UniShard's hold; nothing for keys that cannot
/// be read without the embedded catalog.
FileScalars scalars_beside(const StateDict& state, const std::string& where) {
  try {
    const Catalog plain = arrange_keys(state, where).catalog;
    FileScalars scalars = scalars_of(plain);
    if (!plain.client_state.is_object()) return scalars;
    scalars.values = Json::object();
    for (const auto& [key, value] : plain.client_state.items())
      if (key != kTextKey && !value.is_structured()) scalars.values[key] = value;
    return scalars;
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

Arrangement arrange(const StateDict& state, const std::string& where) {
  if (auto own = arrange_own(state, where)) {
    std::ranges::move(take_later_changes(scalars_beside(state, where), own->catalog),
                      std::back_inserter(own->remarks));
    record_layout(state, *own);
    return std::move(*own);
  }
  Arrangement out = arrange_keys(state, where);
  if (state.complete) state.complete(state, out);
  return out;
}

}  // namespace unishard::converters::dcp
