#include "formats/deepspeed/writer_run.hpp"

#include "unishard/converters/cut_patterns.hpp"
#include "unishard/converters/optimizer_scalars.hpp"
#include "unishard/converters/parameter_groups.hpp"
#include "unishard/format/error.hpp"

#include "containers/pickle_json.hpp"
#include "core/file_records.hpp"
#include "formats/deepspeed/model_keys.hpp"
#include "formats/trainer/further_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <unordered_set>
#include <utility>

namespace unishard::converters::deepspeed_sink {
namespace {

/// Keys that a client state may not overwrite: DeepSpeed writes them or, for the last one, looks
/// for it.
bool is_taken(std::string_view key) { return is_deepspeed_key(key) || key == "autoep_layers"; }

std::optional<std::int64_t> integer_at(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key)) return std::nullopt;
  const Json& value = object[key];
  if (value.is_number_integer()) return value.get<std::int64_t>();
  return std::nullopt;
}

double number_or(const Json& config, std::initializer_list<std::string_view> path,
                 double otherwise) {
  const Json* found = setting(config, path);
  return found != nullptr && found->is_number() ? found->get<double>() : otherwise;
}

Json dtype_json(std::string_view name) {
  return {{"$type", "torch.dtype"}, {"value", fmt::format("torch.{}", name)}};
}

/// Returns the state of the DynamicLossScaler that DeepSpeed makes from the same configuration.
Json fresh_dynamic_scaler(const Json& config) {
  const double power = number_or(config, {"fp16", "initial_scale_power"}, 16);
  const auto hysteresis = static_cast<std::int64_t>(number_or(config, {"fp16", "hysteresis"}, 2));
  return {
      {"cur_scale", std::ldexp(1.0, static_cast<int>(power))},
      {"dynamic", true},
      {"cur_iter", 0},
      {"last_overflow_iter", -1},
      {"scale_factor", 2.0},
      {"scale_window",
       static_cast<std::int64_t>(number_or(config, {"fp16", "loss_scale_window"}, 1000))},
      {"min_scale", static_cast<std::int64_t>(number_or(config, {"fp16", "min_loss_scale"}, 1))},
      {"delayed_shift", hysteresis},
      {"cur_hysteresis", hysteresis},
      {"consecutive_hysteresis", is_set(config, {"fp16", "consecutive_hysteresis"})},
      {"raise_error_at_min_scale", true},
      {"dtype", dtype_json("float16")}};
}

/// Returns the catalog's scaler with every field of DeepSpeed's class; without one, DeepSpeed's
/// initial state.
Json complete_scaler(const Catalog& catalog, DType precision) {
  const Json& saved = catalog.loss_scaler;
  const double fixed = number_or(catalog.config, {"fp16", "loss_scale"}, 0);
  bool dynamic = precision == DType::Float16 && fixed == 0;
  if (saved.is_object()) {
    dynamic = saved.value("dynamic", saved.value("dynamic_loss_scale", false));
  }
  Json scaler = {{"cur_scale", precision == DType::Float16 && fixed > 0 ? fixed : 1.0},
                 {"dynamic", false}};
  if (dynamic) scaler = fresh_dynamic_scaler(catalog.config);
  if (!saved.is_object()) return scaler;
  for (auto& [key, value] : scaler.items()) {
    if (saved.contains(key)) value = saved[key];
  }
  if (dynamic && scaler["dtype"].is_string()) {
    const auto name = scaler["dtype"].get<std::string>();
    scaler["dtype"] = dtype_json(name.substr(name.rfind('.') + 1));
  }
  return scaler;
}

/// Schedules of UniShard's trainer also record type and parameters; DeepSpeed's classes load only
/// the position.
Json scheduler_state(const Json& scheduler) {
  const auto last = integer_at(scheduler, "last_batch_iteration");
  if (!last || !scheduler.contains("type")) return scheduler;
  return {{"last_batch_iteration", *last}};
}

/// Returns the names of every group, because the optimizer's states at stage 0 have numbers only.
Json parameter_names(const SinkModel& model) {
  Json groups = Json::array();
  for (const SinkGroup& group : model.groups) {
    Json names = Json::array();
    for (const std::size_t i : group.parameters) names.push_back(model.parameters[i].fqn);
    groups.push_back(std::move(names));
  }
  return groups;
}

/// Returns the parameters of each group if a group has some that DeepSpeed does not train, frozen
/// and complex ones, else null.
Json members_with_frozen(const Catalog& catalog, const SinkModel& model) {
  if (!catalog.groups.is_array()) return {};
  std::unordered_set<std::string_view> frozen;
  for (const ModuleEntry& entry : model.module) {
    if (entry.kind != ModuleEntry::Kind::Trainable) frozen.insert(entry.fqn);
  }
  Json groups = Json::array();
  bool has_frozen = false;
  for (const Json& group : catalog.groups) {
    groups.push_back(group.value("params", Json::array()));
    for (const Json& name : groups.back())
      has_frozen |= name.is_string() && frozen.contains(name.get_ref<const std::string&>());
  }
  return has_frozen ? groups : Json();
}

/// Returns [number, settings] of each group that DeepSpeed does not have.
Json idle_groups(const Catalog& catalog, const SinkModel& model, std::vector<std::string>& notes) {
  Json groups = Json::array();
  if (!catalog.groups.is_array()) return groups;
  for (const std::size_t g : model.idle_groups)
    groups.push_back(Json::array(
        {g, torch::without_unwritable(catalog.groups[g], fmt::format("groups.{}", g), notes)}));
  return groups;
}

/// Values that only UniShard reads; they are stored beside the user's client state.
Json unishard_section(const Catalog& catalog, const SinkModel& model,
                      std::vector<std::string>& notes) {
  Json section = Json::object();
  if (catalog.data_position.is_object()) {
    for (const auto& [key, value] : catalog.data_position.items()) {
      if (key != "global_steps" && key != "skipped_steps" && key != "global_samples") {
        section["data_position"] = catalog.data_position;
      }
    }
  }
  if (!catalog.rng.is_null()) section["rng"] = catalog.rng;
  if (scheduler_state(catalog.scheduler) != catalog.scheduler) {
    section["scheduler"] = catalog.scheduler;
  }
  const bool has_states = std::ranges::any_of(
      model.groups, [](const SinkGroup& group) { return !group.states.empty(); });
  if (!has_states && catalog.step != 0) section["step"] = catalog.step;
  if (catalog.producer.is_object() && catalog.producer.contains(kUncheckedInput))
    section[kUncheckedInput] = true;
  copy_file_records(catalog.producer, section);
  if (Json members = members_with_frozen(catalog, model); !members.is_null())
    section[kGroupMembers] = std::move(members);
  if (Json groups = idle_groups(catalog, model, notes); !groups.empty())
    section[kIdleGroups] = std::move(groups);
  if (!model.wide_weights.empty()) section[kWideWeights] = model.wide_weights;
  if (catalog.stage == 0) section["parameters"] = parameter_names(model);
  return section;
}

/// Calls take(key, value) for what a dict of the user's has under names, and adds a line to `notes`
/// for all other values, because DeepSpeed's own dict, into which they go, has only names as keys.
template <class Take>
void each_named_value(const Json& dict, std::vector<std::string>& notes, const Take& take) {
  if (dict.is_object() && !dict.contains("$type")) {
    for (const auto& [key, value] : dict.items()) take(key, value);
    return;
  }
  const Json pairs = dict.is_object() ? dict.value("pairs", Json()) : Json();
  if (!dict.is_null() && !pairs.is_array())
    notes.emplace_back("client_state: it is no dict, and DeepSpeed keeps dicts only");
  for (const Json& pair : pairs) {
    if (pair.is_array() && pair.size() == 2 && pair[0].is_string()) {
      take(pair[0].get<std::string>(), pair[1]);
    } else {
      notes.push_back(fmt::format("client_state: the value under {}, which is no name",
                                  pair.is_array() && !pair.empty() ? pair[0].dump() : "nothing"));
    }
  }
}

/// Key of universal_checkpoint_info: for each pattern, the width of each sub-parameter on each
/// rank.
constexpr const char* kShardWidths = "sub_param_shard_widths";
/// Upper bound on a width that is added to others. Real ones are below a million.
constexpr std::int64_t kLargestWidth = std::int64_t{1} << 40;

/// ds_to_universal takes unequal sub-parameters of a dimension for such only where they are a
/// tuple.
Json with_tuples_as_sizes(Json patterns) {
  if (!patterns.is_object() || !patterns.contains("parameter_with_sub_params")) return patterns;
  for (Json& rule : patterns["parameter_with_sub_params"]) {
    if (!rule.is_object() || !rule.contains("shape") || !rule["shape"].is_array()) continue;
    for (Json& size : rule["shape"]) {
      if (size.is_array()) size = {{"$type", "tuple"}, {"items", std::move(size)}};
    }
  }
  return patterns;
}

/// Whether the value is another optimizer or model, which is nothing without its tensors.
bool is_other_part(const std::string& key, const Json& value) {
  const bool is_optimizer = value.is_object() && value.contains("param_groups");
  return (is_optimizer || trainer::is_further_model(key) || trainer::is_further_optimizer(key)) &&
         !torch::tensors_in(value).empty();
}

/// Ends the line about a tensor in the client state.
constexpr std::string_view kNoPlace = "is a tensor, for which DeepSpeed's files have no place";

/// Returns the lines with one that counts for all tensors of a value, such as the averages of a
/// model's weights.
std::vector<std::string> with_counted_tensors(const std::vector<std::string>& lines) {
  constexpr std::size_t kStart = std::string_view("client_state.").size();
  const auto value_of = [](const std::string& line) {
    return line.substr(0, line.find_first_of(".:", kStart));
  };
  std::map<std::string, std::size_t> counts;
  for (const std::string& line : lines) {
    if (line.ends_with(kNoPlace)) ++counts[value_of(line)];
  }
  std::vector<std::string> counted;
  for (const std::string& line : lines) {
    const std::string value = value_of(line);
    if (!line.ends_with(kNoPlace) || counts[value] == 1) {
      counted.push_back(line);
    } else if (const std::size_t count = std::exchange(counts[value], 0); count > 0) {
      counted.push_back(fmt::format("{}: its {} tensors, for which DeepSpeed's files have no place",
                                    value, count));
    }
  }
  return counted;
}

Json client_state(const Catalog& catalog, const SinkModel& model, std::vector<std::string>& notes,
                  std::map<std::string, torch::InlineTensor>& tensors) {
  Json client = Json::object();
  each_named_value(catalog.client_state, notes, [&](const std::string& key, const Json& value) {
    if (is_other_part(key, value)) {
      notes.push_back(fmt::format(
          "client_state.{}: another model or optimizer, for whose {} tensors DeepSpeed's files "
          "have no place",
          key, torch::tensors_in(value).size()));
    } else if (!is_taken(key)) {
      client[key] = key == kCutPatterns ? with_tuples_as_sizes(value) : value;
    } else {
      notes.push_back(fmt::format("client_state.{}: DeepSpeed uses this key itself", key));
    }
  });
  const Json own = unishard_section(catalog, model, notes);
  if (!own.empty()) client["unishard"] = own;
  tensors = torch::take_inline_tensors(client);
  std::vector<std::string> dropped;
  Json kept = torch::without_unwritable(
      client, "client_state", dropped, [&](torch::PickleWriter& pickle, const std::string& name) {
        if (!tensors.contains(name))
          raise(ErrorCode::Unsupported, fmt::format("{} {}", quote(name), kNoPlace));
        pickle.none();
      });
  std::ranges::move(with_counted_tensors(dropped), std::back_inserter(notes));
  return kept;
}

void count_progress(const Catalog& catalog, RunFacts& run) {
  const Json& position = catalog.data_position;
  run.skipped_steps = integer_at(position, "skipped_steps").value_or(0);
  // DeepSpeed counts skipped steps as well.
  std::int64_t steps = catalog.step;
  if (__builtin_add_overflow(catalog.step, run.skipped_steps, &steps)) steps = catalog.step;
  run.global_steps = integer_at(position, "global_steps").value_or(steps);
  run.global_samples = integer_at(position, "global_samples");
  if (!run.global_samples) run.global_samples = integer_at(position, "global_sample_index");
}

/// DeepSpeed's optimizer files have flat tensors and one step.
void note_scalars(const Catalog& catalog, std::vector<std::string>& notes) {
  const OptimizerScalars scalars(catalog);
  std::map<std::string, std::size_t> counts;
  for (const std::string& fqn : scalars.fqns()) {
    for (const auto& [state, value] : scalars.of(fqn)) ++counts[state];
  }
  for (const auto& [state, count] : counts)
    notes.push_back(
        fmt::format("optimizer state {} of {} parameters, a value for each: only "
                    "UniShard finds it again, in the client state",
                    quote(state), count));
}

}  // namespace

RunFacts describe_run(const Catalog& catalog, const SinkModel& model,
                      std::vector<std::string>& notes) {
  RunFacts run;
  count_progress(catalog, run);
  run.scheduler = scheduler_state(catalog.scheduler);
  if (run.scheduler.is_object()) {
    run.scheduler = torch::without_unwritable(run.scheduler, "scheduler", notes);
  }
  run.has_loss_scaler = catalog.loss_scaler.is_object() || model.precision == DType::Float16;
  run.loss_scaler = complete_scaler(catalog, model.precision);
  if (catalog.config.is_object()) {
    run.config = torch::without_unwritable(catalog.config, "config", notes);
  }
  const Json* clip = setting(catalog.config, {"gradient_clipping"});
  if (clip != nullptr && clip->is_number()) run.clip_grad = clip->get<double>();
  run.client_state = client_state(catalog, model, notes, run.tensors);
  note_scalars(catalog, notes);
  if (!catalog.units.empty()) {
    notes.emplace_back("units: left out, UniShard's trainer makes them from its model");
  }
  return run;
}

void join_shard_widths(Json& client_state) {
  if (!client_state.is_object() || !client_state.contains(kCutPatterns)) return;
  Json& info = client_state[kCutPatterns];
  if (!info.is_object() || !info.contains(kShardWidths)) return;
  const auto is_count = [](const Json& width) {
    return width.is_number_integer() && width >= 0 && width <= kLargestWidth;
  };
  for (Json& of_pattern : info[kShardWidths]) {
    if (!of_pattern.is_array()) continue;
    for (Json& widths : of_pattern) {
      if (!widths.is_array() || !std::ranges::all_of(widths, is_count)) continue;
      std::int64_t whole = 0;  // at most the largest width for each entry of a list in memory
      for (const Json& width : widths) whole += width.get<std::int64_t>();
      widths = Json::array({whole});
    }
  }
}

void write_plain(torch::PickleWriter& pickle, const Json& value) {
  torch::write_json(pickle, value, torch::refuse_tensor);
}

void write_scaling(torch::PickleWriter& pickle, const RunFacts& run) {
  pickle.str("loss_scaler");
  pickle.global("deepspeed.runtime.fp16.loss_scaler",
                run.scales_dynamically() ? "DynamicLossScaler" : "LossScaler");
  pickle.new_object();
  write_plain(pickle, run.loss_scaler);
  pickle.build();
  pickle.str("dynamic_loss_scale");
  pickle.boolean(run.scales_dynamically());
  pickle.str("overflow");
  pickle.boolean(false);
}

void write_client_state(torch::ArchiveDraft& file, const RunFacts& run) {
  for (const auto& [key, value] : run.client_state.items()) {
    file.pickle.str(key);
    torch::write_json(file.pickle, value, [&](torch::PickleWriter&, const std::string& name) {
      const torch::InlineTensor& tensor = run.tensors.at(name);
      file.constant(tensor.dtype, tensor.shape, tensor.bytes);
    });
  }
}

void write_group(torch::PickleWriter& pickle, const SinkGroup& group,
                 std::span<const std::int64_t> params) {
  pickle.begin_dict();
  const Json settings = with_tuples(group.settings);
  for (const auto& [key, value] : settings.items()) {
    pickle.str(key);
    write_plain(pickle, value);
  }
  pickle.str("params");
  pickle.begin_list();
  for (const std::int64_t index : params) pickle.integer(index);
  pickle.end_list();
  pickle.end_dict();
}

void write_progress(torch::PickleWriter& pickle, const RunFacts& run) {
  pickle.str("lr_scheduler");
  write_plain(pickle, run.scheduler);
  for (const char* unused : {"data_sampler", "random_ltd"}) {
    pickle.str(unused);
    pickle.none();
  }
  pickle.str("skipped_steps");
  pickle.integer(run.skipped_steps);
  pickle.str("global_steps");
  pickle.integer(run.global_steps);
  if (run.global_samples) {
    pickle.str("global_samples");
    pickle.integer(*run.global_samples);
  }
}

void write_origin(torch::PickleWriter& pickle, const RunFacts& run) {
  if (run.config.is_object()) {
    pickle.str("ds_config");
    write_plain(pickle, run.config);
  }
  pickle.str("ds_version");
  pickle.str(kDeepSpeedVersion);
}

}  // namespace unishard::converters::deepspeed_sink
