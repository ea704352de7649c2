#include "formats/deepspeed/writer_model.hpp"

#include "unishard/converters/parameter_groups.hpp"
#include "unishard/format/error.hpp"

#include "containers/pickle_json.hpp"
#include "core/adam_settings.hpp"
#include "core/file_records.hpp"
#include "formats/deepspeed/cpu_states.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

namespace unishard::converters::deepspeed_sink {
namespace {

bool is_float(DType dtype) { return info(dtype).kind == Kind::Float; }
bool is_16_bit(DType dtype) { return dtype == DType::BFloat16 || dtype == DType::Float16; }

/// All tensors of one name.
struct Gathered {
  std::optional<TensorIndex> fp32, weights, buffer;
  std::vector<std::pair<std::string, TensorIndex>> states;
};

struct GatheredNames {
  std::vector<std::string> order;
  std::unordered_map<std::string, Gathered> by_fqn;
};

GatheredNames gather(const Catalog& catalog) {
  GatheredNames all;
  for (TensorIndex i = 0; i < catalog.tensors.size(); ++i) {
    const TensorInfo& tensor = catalog.tensors[i];
    const auto [found, is_new] = all.by_fqn.try_emplace(tensor.fqn);
    if (is_new) all.order.push_back(tensor.fqn);
    Gathered& entry = found->second;
    if (tensor.state == state::kFp32) {
      entry.fp32 = i;
    } else if (tensor.state == state::kWeights) {
      entry.weights = i;
    } else if (tensor.state == state::kBuffer) {
      entry.buffer = i;
    } else {
      entry.states.emplace_back(tensor.state, i);
    }
  }
  return all;
}

bool is_trained_in_16_bits(const TensorInfo& tensor) {
  return tensor.state == state::kWeights && !tensor.frozen && is_16_bit(tensor.dtype);
}

DType find_precision(const Catalog& catalog) {
  const auto narrow = std::ranges::find_if(catalog.tensors, is_trained_in_16_bits);
  if (narrow != catalog.tensors.end()) return narrow->dtype;
  if (is_set(catalog.config, {"bf16", "enabled"})) return DType::BFloat16;
  if (is_set(catalog.config, {"fp16", "enabled"})) return DType::Float16;
  return DType::Float32;
}

/// Sorts the names into trainable parameters, frozen ones and buffers. A weight without an fp32
/// master is trainable, and its own master, where the optimizer has it. Where nothing has fp32
/// masters (plain weights), every weight that is not frozen is so.
class Classifier {
 public:
  Classifier(const Catalog& catalog, SinkModel& model) : catalog_(catalog), model_(model) {
    has_masters_ = std::ranges::any_of(
        catalog.tensors, [](const TensorInfo& tensor) { return tensor.state == state::kFp32; });
    has_16_bit_weights_ = std::ranges::any_of(catalog.tensors, is_trained_in_16_bits);
  }

  void add(const std::string& fqn, const Gathered& entry) {
    if (entry.buffer) return enter(fqn, ModuleEntry::Kind::Buffer, *entry.buffer);
    if (entry.fp32) return train(fqn, entry, *entry.fp32);
    if (!entry.weights) return;  // a state of nothing: note_left_out() says so
    const TensorInfo& weights = catalog_.tensors[*entry.weights];
    const bool is_known = weights.group >= 0 || !entry.states.empty();
    const bool is_trainable = !weights.frozen && is_float(weights.dtype);
    if (is_trainable && (is_known || !has_masters_)) return train(fqn, entry, *entry.weights);
    const bool is_buffer = !weights.frozen && !is_trainable;
    if (is_buffer && is_known)
      model_.notes.push_back(
          fmt::format("{}: that it is trained: DeepSpeed trains no {}, so it is a buffer there",
                      fqn, name_of(weights.dtype)));
    enter(fqn, is_buffer ? ModuleEntry::Kind::Buffer : ModuleEntry::Kind::Frozen, *entry.weights);
  }

 private:
  void enter(const std::string& fqn, ModuleEntry::Kind kind, TensorIndex tensor) {
    model_.module.push_back({fqn, kind, tensor, catalog_.tensors[tensor].dtype});
  }

  void train(const std::string& fqn, const Gathered& entry, TensorIndex master) {
    const TensorInfo& tensor = catalog_.tensors[master];
    if (!is_float(tensor.dtype)) {
      raise(ErrorCode::Unsupported, fmt::format("{}: masters of type {} cannot be trained",
                                                tensor.label(), name_of(tensor.dtype)));
    }
    for (const auto& [state, index] : entry.states) require_float_state(catalog_.tensors[index]);
    // The module's weights are the masters where both have one type.
    const bool is_master = entry.weights && catalog_.tensors[*entry.weights].dtype == tensor.dtype;
    const std::optional<TensorIndex> weights = is_master ? std::nullopt : entry.weights;
    model_.parameters.push_back(
        {fqn, tensor.shape, tensor.elements(), master, weights, entry.states});
    enter(fqn, ModuleEntry::Kind::Trainable, weights.value_or(master));
    const bool rounds = !entry.weights && model_.precision != DType::Float32;
    if (!rounds) return;
    model_.module.back().dtype = model_.precision;
    if (has_16_bit_weights_) model_.wide_weights.push_back(fqn);
  }

  static void require_float_state(const TensorInfo& state) {
    if (is_float(state.dtype)) return;
    raise(ErrorCode::Unsupported,
          fmt::format("{}: an optimizer state of type {}, which no optimizer of DeepSpeed has",
                      state.label(), name_of(state.dtype)),
          "native, dcp and torch keep the states; --weights-only converts the model");
  }

  const Catalog& catalog_;
  SinkModel& model_;
  bool has_masters_ = false, has_16_bit_weights_ = false;
};

void add_aliases(const Catalog& catalog, SinkModel& model) {
  std::unordered_map<std::string_view, std::size_t> entries;
  for (std::size_t i = 0; i < model.module.size(); ++i) entries.emplace(model.module[i].fqn, i);
  for (const Alias& alias : catalog.aliases) {
    const auto found = entries.find(alias.target);
    if (found == entries.end()) {
      model.notes.push_back(
          fmt::format("{}: a second name of {}, which is left out", alias.fqn, alias.target));
    } else {
      model.aliases.emplace_back(alias.fqn, found->second);
    }
  }
}

/// Assigns parameters to groups: by the names that a group lists, else by the tensors' group
/// numbers, else all to the only group.
class Grouper {
 public:
  Grouper(const Catalog& catalog, const SinkModel& model) : catalog_(catalog), model_(model) {
    for (std::size_t i = 0; i < model.parameters.size(); ++i) {
      parameters_.emplace(model.parameters[i].fqn, i);
    }
    for (const ModuleEntry& entry : model.module) known_.emplace(entry.fqn, entry.fqn);
    for (const auto& [alias, entry] : model.aliases) {
      known_.emplace(alias, model.module[entry].fqn);
    }
  }

  std::vector<SinkGroup> groups() {
    std::vector<SinkGroup> out(group_count());
    std::vector<std::size_t> owner(model_.parameters.size(), out.size());
    for (std::size_t g = 0; g < out.size(); ++g) {
      out[g].settings = settings_of(g);
      for (const std::size_t parameter : members(g, out.size())) {
        if (owner[parameter] == g) continue;  // listed under both of its names
        if (owner[parameter] != out.size()) refuse(parameter, "is in two parameter groups");
        owner[parameter] = g;
        out[g].parameters.push_back(parameter);
      }
    }
    for (std::size_t i = 0; i < owner.size(); ++i) {
      if (owner[i] == out.size()) refuse(i, "is in no parameter group");
    }
    return out;
  }

 private:
  [[noreturn]] void refuse(std::size_t parameter, std::string_view problem) const {
    raise(ErrorCode::Mismatch, fmt::format("{} {}", model_.parameters[parameter].fqn, problem),
          "DeepSpeed needs every trainable parameter in exactly one group");
  }

  std::size_t group_count() const {
    std::size_t count = catalog_.groups.is_array() ? catalog_.groups.size() : 0;
    for (const TensorInfo& tensor : catalog_.tensors) {
      if (tensor.group >= 0) count = std::max(count, static_cast<std::size_t>(tensor.group) + 1);
    }
    return std::max<std::size_t>(count, 1);
  }

  const Json* described(std::size_t group) const {
    if (!catalog_.groups.is_array() || group >= catalog_.groups.size()) return nullptr;
    return catalog_.groups[group].is_object() ? &catalog_.groups[group] : nullptr;
  }

  Json settings_of(std::size_t group) const {
    const Json* found = described(group);
    Json settings = found == nullptr ? Json::object() : *found;
    settings.erase("params");
    return settings;
  }

  std::vector<std::size_t> members(std::size_t group, std::size_t group_total) const {
    const Json* found = described(group);
    if (found != nullptr && found->contains("params") && lists_names((*found)["params"])) {
      return named((*found)["params"], group);
    }
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < model_.parameters.size(); ++i) {
      const std::int32_t number = catalog_.tensors[model_.parameters[i].master].group;
      if (number == static_cast<std::int32_t>(group) || (number < 0 && group_total == 1)) {
        out.push_back(i);
      }
    }
    return out;
  }

  static bool lists_names(const Json& params) {
    return params.is_array() && !params.empty() &&
           std::ranges::all_of(params, [](const Json& name) { return name.is_string(); });
  }

  std::vector<std::size_t> named(const Json& names, std::size_t group) const {
    std::vector<std::size_t> out;
    for (const Json& json : names) {
      const auto& name = json.get_ref<const std::string&>();
      const auto found = known_.find(name);
      if (found == known_.end()) {
        raise(ErrorCode::Mismatch, fmt::format("parameter group {} lists {}, which the checkpoint "
                                               "does not have",
                                               group, quote(name)));
      }
      // Frozen parameters may be listed; DeepSpeed leaves them out, too.
      const auto parameter = parameters_.find(found->second);
      if (parameter != parameters_.end()) out.push_back(parameter->second);
    }
    return out;
  }

  const Catalog& catalog_;
  const SinkModel& model_;
  std::unordered_map<std::string_view, std::size_t> parameters_;
  std::unordered_map<std::string_view, std::string_view> known_;  // any name -> canonical
};

bool has_state(const SinkGroup& group, std::string_view name) {
  return std::ranges::find(group.states, name) != group.states.end();
}

/// torch's Adam subtracts the decay from the weights when it is AdamW. DeepSpeed's "Adam" is AdamW
/// as well, unless adam_w_mode is off.
bool decays_decoupled(const Json& settings, const Json& config) {
  if (settings.contains("optimizer")) return settings["optimizer"] != "Adam";
  const Json* type = setting(config, {"optimizer", "type"});
  const Json* mode = setting(config, {"optimizer", "params", "adam_w_mode"});
  return !(type != nullptr && *type == "Adam" && mode != nullptr && *mode == false);
}

/// DeepSpeed's Muon updates the other groups with its FusedAdam, which counts steps in integers.
void complete_for_muon(SinkGroup& group) {
  Json defaults = {{"bias_correction", true}};
  if (group.is_muon()) defaults = {{"ns_method", "gram"}};
  for (const auto& [key, value] : defaults.items())
    if (!group.settings.contains(key)) group.settings[key] = value;
}

/// DeepSpeed's Muon has larger shapes first, as Python compares them.
void sort_for_muon(SinkGroup& group, const SinkModel& model) {
  if (!group.is_muon()) return;
  std::ranges::stable_sort(group.parameters, std::ranges::greater{},
                           [&](std::size_t index) { return model.parameters[index].shape; });
}

/// Prodigy, schedule-free and others have states of their own as well, and other settings.
bool is_adam(const SinkGroup& group) {
  return has_state(group, state::kExpAvg) && has_state(group, state::kExpAvgSq) &&
         std::ranges::all_of(group.states, is_state_of_adam);
}

bool is_torch_adam(const SinkGroup& group) {
  return is_adam(group) && !group.settings.contains("use_muon") && !group.counts_in_int();
}

/// torch's optimizers index their groups without defaults: what a group lacks (one of UniShard's
/// trainer, one of an older torch) it gets here.
void complete(SinkGroup& group, const Json& config) {
  if (group.settings.contains("use_muon")) return complete_for_muon(group);
  if (group.counts_in_int()) return;
  const Json none = nullptr;
  Json defaults = Json::object();
  const bool is_sgd = group.states == std::vector<std::string>{"momentum_buffer"} ||
                      (group.states.empty() && group.settings.contains("momentum"));
  const bool is_fresh = group.states.empty() && !is_sgd;
  if (is_adam(group) || is_fresh) {
    defaults = adamw_defaults();
    defaults["amsgrad"] = has_state(group, "max_exp_avg_sq");
    defaults["decoupled_weight_decay"] = decays_decoupled(group.settings, config);
  } else if (is_sgd) {
    defaults = {{"lr", 1e-3},          {"momentum", 0.0},         {"dampening", 0.0},
                {"weight_decay", 0.0}, {"nesterov", false},       {"maximize", false},
                {"foreach", none},     {"differentiable", false}, {"fused", none}};
  }
  if (has_state(group, deepspeed::kAdagradSum))
    defaults = {{"lr", 1e-2}, {"lr_decay", 0.0}, {"eps", 1e-10}, {"weight_decay", 0.0}};
  for (const auto& [key, value] : defaults.items()) {
    if (!group.settings.contains(key)) group.settings[key] = value;
  }
}

/// Returns whether a state is a number for every parameter of the group that has it, and the state
/// of a parameter with dimensions among them.
bool is_scalar(const Catalog& catalog, const SinkModel& model, const SinkGroup& group,
               std::string_view name) {
  bool is_found = false;
  for (const std::size_t i : group.parameters) {
    const SinkParameter& parameter = model.parameters[i];
    const auto tensor = parameter.state(name);
    if (tensor && !catalog.tensors[*tensor].shape.empty()) return false;
    is_found |= tensor.has_value() && !parameter.shape.empty();
  }
  return is_found;
}

void find_states(const Catalog& catalog, const SinkModel& model, SinkGroup& group) {
  for (const std::size_t parameter : group.parameters) {
    for (const auto& [name, tensor] : model.parameters[parameter].states) {
      if (has_state(group, name) || std::ranges::count(group.scalars, name) > 0) continue;
      (is_scalar(catalog, model, group, name) ? group.scalars : group.states).push_back(name);
    }
  }
}

void add_groups(const Catalog& catalog, SinkModel& model) {
  std::vector<SinkGroup> all = Grouper(catalog, model).groups();
  for (std::size_t g = 0; g < all.size(); ++g) {
    if (all[g].parameters.empty()) {
      model.idle_groups.push_back(g);
      model.notes.push_back(fmt::format(
          "parameter group {} has no trainable parameter, and DeepSpeed has no such groups: a "
          "schedule with a value for each group, such as that of scheduler.pt, has one too many. "
          "Conversions of the result have the group again",
          g));
      continue;
    }
    find_states(catalog, model, all[g]);
    all[g].settings =
        torch::without_unwritable(all[g].settings, fmt::format("groups.{}", g), model.notes);
    if (std::string line = is_torch_adam(all[g]) ? note_assumed_settings(all[g].settings, g) : "";
        !line.empty())
      model.notes.push_back(std::move(line));
    complete(all[g], catalog.config);
    sort_for_muon(all[g], model);
    model.groups.push_back(std::move(all[g]));
  }
}

}  // namespace

std::optional<TensorIndex> SinkParameter::state(std::string_view name) const {
  for (const auto& [found, tensor] : states) {
    if (found == name) return tensor;
  }
  return std::nullopt;
}

/// Weights alone, perhaps with tensors of neither model nor optimizer: DeepSpeed could load them,
/// and nothing in its files would tell them from masters.
/// The weights that an optimizer's groups list are trained, though it has no states of them.
bool is_weights_only(const Catalog& catalog) {
  const auto is_weight = [](const TensorInfo& tensor) {
    return tensor.state == state::kWeights || tensor.state == state::kBuffer;
  };
  std::unordered_set<std::string_view> model;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (is_weight(tensor)) model.insert(tensor.fqn);
  }
  const auto lists_weights = [&](const Json& group) {
    const auto listed = listed_parameters(group);
    return listed && std::ranges::any_of(
                         *listed, [&](const std::string& name) { return model.contains(name); });
  };
  if (catalog.groups.is_array() && std::ranges::any_of(catalog.groups, lists_weights)) return false;
  return std::ranges::none_of(catalog.tensors, [&](const TensorInfo& tensor) {
    return tensor.state == state::kFp32 || (!is_weight(tensor) && model.contains(tensor.fqn));
  });
}

SinkModel describe_model(const Catalog& catalog) {
  if (is_weights_only(catalog)) {
    raise(ErrorCode::Unsupported, "the checkpoint holds weights and no optimizer with parameters",
          "DeepSpeed's checkpoints hold training runs; write safetensors, a torch file or a native "
          "checkpoint");
  }
  SinkModel model;
  model.precision = find_precision(catalog);
  model.saves_no_frozen = catalog.producer.is_object() &&
                          catalog.producer.value(std::string(kSavesNoFrozen), Json()) == true;
  const GatheredNames names = gather(catalog);
  Classifier classifier(catalog, model);
  for (const std::string& fqn : names.order) classifier.add(fqn, names.by_fqn.at(fqn));
  if (model.parameters.empty()) {
    raise(ErrorCode::Unsupported, "the checkpoint has no trainable parameter",
          "DeepSpeed's checkpoints hold training runs; write safetensors or a torch file");
  }
  add_aliases(catalog, model);
  add_groups(catalog, model);
  return model;
}

namespace {

bool is_scalar_state(const SinkModel& model, const std::string& name) {
  return std::ranges::any_of(model.groups, [&](const SinkGroup& group) {
    return std::ranges::count(group.scalars, name) > 0;
  });
}

}  // namespace

std::vector<std::string> note_left_out(const Catalog& catalog, const SinkModel& model,
                                       const std::vector<std::size_t>& left_out) {
  struct LeftOut {
    bool is_saved = true;  ///< false for frozen weights of a run that saves none
    std::string state;
    auto operator<=>(const LeftOut&) const = default;
  };
  std::map<LeftOut, std::pair<std::size_t, std::string>> kinds;
  for (const std::size_t i : left_out) {
    const TensorInfo& tensor = catalog.tensors[i];
    auto& [count, first] = kinds[{!(tensor.frozen && model.saves_no_frozen), tensor.state}];
    if (count++ == 0) first = tensor.label();
  }
  const auto why = [&](const LeftOut& kind) {
    if (!kind.is_saved)
      return "the run saves no frozen parameters, and stage 3 has no other place for them";
    if (kind.state == state::kWeights) return "DeepSpeed has the masters of such weights only";
    if (is_scalar_state(model, kind.state))
      return "universal checkpoints hold no numbers of parameters";
    return "there are no weights of these names";
  };
  std::vector<std::string> notes;
  notes.reserve(kinds.size());
  for (const auto& [kind, counted] : kinds)
    notes.push_back(fmt::format("{} tensors of {} are left out, {} first: {}", counted.first,
                                kind.is_saved ? "state " + kind.state : "frozen weights",
                                counted.second, why(kind)));
  return notes;
}

DType flat_dtype(const Catalog& catalog, const std::vector<TensorIndex>& tensors) {
  std::optional<DType> common;
  for (const TensorIndex index : tensors) {
    const TensorInfo& tensor = catalog.tensors[index];
    // Weights become masters.
    const DType dtype = tensor.state == state::kWeights ? DType::Float32 : tensor.dtype;
    if (dtype == DType::Float64) return dtype;
    common = common.value_or(dtype) == dtype ? dtype : DType::Float32;
  }
  return common.value_or(DType::Float32);
}

const Json* setting(const Json& config, std::initializer_list<std::string_view> path) {
  const Json* at = &config;
  for (const std::string_view key : path) {
    if (!at->is_object()) return nullptr;
    const auto found = at->find(std::string(key));
    if (found == at->end()) return nullptr;
    at = &*found;
  }
  return at;
}

bool is_set(const Json& config, std::initializer_list<std::string_view> path) {
  const Json* found = setting(config, path);
  return found != nullptr && *found == true;
}

}  // namespace unishard::converters::deepspeed_sink
