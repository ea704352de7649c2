#include "unishard/trainer/config.hpp"

#include "unishard/format/error.hpp"

#include "config/key_tables.hpp"
#include "config/precision.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <span>

namespace unishard::trainer {
namespace {

using detail::ObjectReader;

void require(bool holds, const ObjectReader& reader, std::string_view key,
             const std::string& expected) {
  if (!holds && reader.find(key)) reader.refuse(key, expected);
}

std::string lower_case(std::string name) {
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

/// Returns what DeepSpeed's optimizers of the type use where the configuration says nothing.
Hyper default_hyper(std::string_view type) {
  Hyper hyper;
  if (type == "lion") hyper.beta2 = 0.99;
  if (type == "adagrad") {
    hyper.lr = 1e-2;
    hyper.eps = 1e-10;
  }
  return hyper;
}

/// The types, of an optimizer or a schedule, that use a parameter.
struct UseRule {
  std::string_view key;
  std::array<std::string_view, 3> types;
};

constexpr std::array<UseRule, 6> kOptimizerUse = {{{"betas", {"adam", "adamw", "lion"}},
                                                   {"eps", {"adam", "adamw", "adagrad"}},
                                                   {"momentum", {"sgd"}},
                                                   {"dampening", {"sgd"}},
                                                   {"nesterov", {"sgd"}},
                                                   {"lr_decay", {"adagrad"}}}};

constexpr std::array<UseRule, 7> kScheduleUse = {
    {{"warmup_min_lr", {"WarmupLR", "WarmupDecayLR"}},
     {"warmup_max_lr", {"WarmupLR", "WarmupDecayLR"}},
     {"warmup_num_steps", {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"}},
     {"warmup_type", {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"}},
     {"total_num_steps", {"WarmupDecayLR", "WarmupCosineLR"}},
     {"warmup_min_ratio", {"WarmupCosineLR"}},
     {"cos_min_ratio", {"WarmupCosineLR"}}}};

/// Notes the parameters that the type does not use.
void note_unused(std::span<const UseRule> rules, std::string_view type, const ObjectReader& values,
                 std::string_view what, std::vector<std::string>& notes) {
  for (const UseRule& rule : rules) {
    if (values.find(rule.key) != nullptr && std::ranges::find(rule.types, type) == rule.types.end())
      notes.push_back(fmt::format("{}: has no effect on this {}", values.path(rule.key), what));
  }
}

/// Returns the configuration without members that are null or "auto", which say nothing.
Json without_unset(const Json& json) {
  if (!json.is_object()) return json;
  Json out = Json::object();
  for (const auto& [key, value] : json.items()) {
    if (!value.is_null() && value != "auto") out[key] = without_unset(value);
  }
  return out;
}

void read_optimizer(const Json& json, Config& config) {
  const ObjectReader reader(json, "optimizer", detail::kOptimizerKeys, config.notes);
  config.optimizer = reader.text("type").value_or("AdamW");
  const Json empty = Json::object();
  const Json* params = reader.find("params");
  const ObjectReader values(params ? *params : empty, "optimizer.params", detail::kOptimizerParams,
                            config.notes);
  const std::string type = lower_case(config.optimizer);
  Hyper& hyper = config.hyper;
  hyper = default_hyper(type);
  hyper.lr = values.number("lr").value_or(hyper.lr);
  hyper.eps = values.number("eps").value_or(hyper.eps);
  hyper.weight_decay = values.number("weight_decay").value_or(hyper.weight_decay);
  hyper.momentum = values.number("momentum").value_or(hyper.momentum);
  hyper.dampening = values.number("dampening").value_or(hyper.dampening);
  hyper.lr_decay = values.number("lr_decay").value_or(hyper.lr_decay);
  hyper.nesterov = values.boolean("nesterov").value_or(hyper.nesterov);
  hyper.decoupled_decay = values.boolean("adam_w_mode").value_or(hyper.decoupled_decay);
  if (!hyper.decoupled_decay && type == "adamw") {  // as in DeepSpeed
    hyper.decoupled_decay = true;
    config.notes.emplace_back("optimizer.params.adam_w_mode: has no effect on AdamW");
  }
  if (const Json* betas = values.find("betas")) {
    if (!betas->is_array() || betas->size() != 2 || !(*betas)[0].is_number() ||
        !(*betas)[1].is_number()) {
      values.refuse("betas", "a pair of numbers");
    }
    hyper.beta1 = (*betas)[0].get<double>();
    hyper.beta2 = (*betas)[1].get<double>();
    require(hyper.beta1 >= 0 && hyper.beta1 < 1 && hyper.beta2 >= 0 && hyper.beta2 < 1, values,
            "betas", "two numbers from 0 up to 1");
  }
  require(hyper.lr >= 0, values, "lr", "zero or more");
  require(hyper.eps >= 0, values, "eps", "zero or more");
  require(hyper.weight_decay >= 0, values, "weight_decay", "zero or more");
  require(hyper.momentum >= 0, values, "momentum", "zero or more");
  require(hyper.lr_decay >= 0, values, "lr_decay", "zero or more");
  require(values.boolean("bias_correction").value_or(true), values, "bias_correction", "true");
  require(!hyper.nesterov || hyper.momentum > 0, values, "nesterov", "possible without momentum");
  make_optimizer(config.optimizer, hyper);  // refuses unknown names
  note_unused(kOptimizerUse, type, values, "optimizer", config.notes);
}

void read_scheduler(const Json& json, Config& config) {
  const ObjectReader reader(json, "scheduler", detail::kSchedulerKeys, config.notes);
  const auto type = reader.text("type");
  if (!type) return;
  constexpr std::array kKinds{ScheduleKind::Constant, ScheduleKind::WarmupLR,
                              ScheduleKind::WarmupDecayLR, ScheduleKind::WarmupCosineLR};
  Schedule& schedule = config.schedule;
  bool known = false;
  for (const ScheduleKind kind : kKinds) {
    if (name_of(kind) != *type) continue;
    schedule.kind = kind;
    known = true;
  }
  if (!known) reader.refuse("type", "one of Constant, WarmupLR, WarmupDecayLR, WarmupCosineLR");
  const Json empty = Json::object();
  const Json* params = reader.find("params");
  const ObjectReader values(params ? *params : empty, "scheduler.params", detail::kSchedulerParams,
                            config.notes);
  schedule.warmup_min_lr = values.number("warmup_min_lr").value_or(schedule.warmup_min_lr);
  if (schedule.kind == ScheduleKind::WarmupDecayLR)
    schedule.warmup_max_lr = 0.001;  // DeepSpeed's default
  schedule.warmup_max_lr = values.number("warmup_max_lr").value_or(schedule.warmup_max_lr);
  schedule.warmup_num_steps =
      values.integer("warmup_num_steps").value_or(schedule.warmup_num_steps);
  schedule.warmup_min_ratio = values.number("warmup_min_ratio").value_or(schedule.warmup_min_ratio);
  schedule.cos_min_ratio = values.number("cos_min_ratio").value_or(schedule.cos_min_ratio);
  require(schedule.warmup_num_steps >= 0, values, "warmup_num_steps", "zero or more");
  require(schedule.warmup_min_lr >= 0, values, "warmup_min_lr", "zero or more");
  require(schedule.warmup_max_lr >= 0, values, "warmup_max_lr", "zero or more");
  require(schedule.warmup_min_ratio >= 0, values, "warmup_min_ratio", "zero or more");
  require(schedule.cos_min_ratio >= 0, values, "cos_min_ratio", "zero or more");
  require(values.integer("last_batch_iteration").value_or(-1) == -1, values, "last_batch_iteration",
          "-1, because a resumed run has the checkpoint's");
  const std::string shape = values.text("warmup_type").value_or("log");
  require(shape == "log" || shape == "linear", values, "warmup_type", "\"log\" or \"linear\"");
  schedule.warmup_type = shape == "linear" ? WarmupType::Linear : WarmupType::Log;
  const bool bounded =
      schedule.kind == ScheduleKind::WarmupDecayLR || schedule.kind == ScheduleKind::WarmupCosineLR;
  const auto total = values.integer("total_num_steps");
  if (bounded && !total) {
    raise(ErrorCode::InvalidArgument, "configuration: scheduler.params.total_num_steps is missing");
  }
  schedule.total_num_steps = total.value_or(0);
  require(schedule.total_num_steps >= 0, values, "total_num_steps", "zero or more");
  note_unused(kScheduleUse, *type, values, "schedule", config.notes);
}

void read_limits(const ObjectReader& reader, ZeroLimits& limits) {
  const auto read = [&reader](const char* key, std::int64_t& value) {
    value = reader.integer(key).value_or(value);
    require(value >= 0, reader, key, "zero or more");
  };
  limits.overlap_comm = reader.boolean("overlap_comm").value_or(limits.overlap_comm);
  read("reduce_bucket_size", limits.reduce_bucket_size);
  read("allgather_bucket_size", limits.allgather_bucket_size);
  read("stage3_prefetch_bucket_size", limits.prefetch_bucket_size);
  read("stage3_max_live_parameters", limits.max_live_parameters);
  read("stage3_max_reuse_distance", limits.max_reuse_distance);
  read("stage3_param_persistence_threshold", limits.param_persistence_threshold);
  require(reader.boolean("contiguous_gradients").value_or(true), reader, "contiguous_gradients",
          "true: gradients are always kept in one piece");
}

void read_zero(const Json& json, Config& config) {
  const ObjectReader reader(json, "zero_optimization", detail::kZeroKeys, config.notes);
  const std::int64_t stage = reader.integer("stage").value_or(0);
  require(stage >= 0 && stage <= 3, reader, "stage", "0, 1, 2 or 3");
  config.stage = static_cast<std::uint32_t>(stage);
  read_limits(reader, config.zero);
  require(reader.boolean("load_from_fp32_weights").value_or(true), reader, "load_from_fp32_weights",
          "true");
  require(reader.integer("zero_hpz_partition_size").value_or(1) == 1, reader,
          "zero_hpz_partition_size", "1");
  require(reader.integer("mics_shard_size").value_or(-1) == -1, reader, "mics_shard_size", "-1");
}

void read_recompute(const Json& json, Config& config) {
  const ObjectReader reader(json, "activation_checkpointing", detail::kRecomputeKeys, config.notes);
  RecomputeOptions options;
  require(!reader.boolean("partition_activations").value_or(false), reader, "partition_activations",
          "false: it needs model parallelism");
  options.cpu_checkpointing = reader.boolean("cpu_checkpointing").value_or(false);
  options.contiguous_memory_optimization =
      reader.boolean("contiguous_memory_optimization").value_or(false);
  options.number_checkpoints = reader.integer("number_checkpoints").value_or(0);
  options.profile = reader.boolean("profile").value_or(false);
  require(options.number_checkpoints >= 0, reader, "number_checkpoints", "zero or more");
  if (options.contiguous_memory_optimization && options.number_checkpoints == 0) {
    raise(ErrorCode::InvalidArgument,
          "configuration: activation_checkpointing.number_checkpoints is missing",
          "contiguous_memory_optimization needs the number of recomputed parts of the model");
  }
  config.activation_checkpointing = options;
}

}  // namespace

Config parse_config(const Json& json) {
  Config config;
  const ObjectReader top(json, "$", detail::kTopKeys, config.notes);
  config.batch = {.train = top.integer("train_batch_size"),
                  .micro = top.integer("train_micro_batch_size_per_gpu"),
                  .accumulation = top.integer("gradient_accumulation_steps")};
  if (const Json* section = top.find("optimizer")) read_optimizer(*section, config);
  if (const Json* section = top.find("scheduler")) read_scheduler(*section, config);
  if (const Json* section = top.find("zero_optimization")) read_zero(*section, config);
  if (const Json* section = top.find("activation_checkpointing")) read_recompute(*section, config);
  detail::read_precision(top, config);
  config.gradient_clipping = top.number("gradient_clipping").value_or(config.gradient_clipping);
  require(config.gradient_clipping >= 0, top, "gradient_clipping", "zero or more");
  config.steps_per_print = top.integer("steps_per_print").value_or(config.steps_per_print);
  const auto canonical_order = top.boolean("canonical_order");
  config.canonical_order = canonical_order.value_or(config.canonical_order);
  if (canonical_order && !*canonical_order) config.sum = Sum::Fast;
  const std::string non_finite = top.text("non_finite").value_or("error");
  require(non_finite == "error" || non_finite == "skip", top, "non_finite",
          "\"error\" or \"skip\"");
  config.non_finite = non_finite == "skip" ? NonFinite::Skip : NonFinite::Error;
  const std::int64_t seed = top.integer("seed").value_or(static_cast<std::int64_t>(config.seed));
  require(seed >= 0, top, "seed", "zero or more");
  config.seed = static_cast<std::uint64_t>(seed);
  config.source = without_unset(json);
  return config;
}

}  // namespace unishard::trainer
