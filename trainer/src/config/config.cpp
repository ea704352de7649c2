#include "unishard/trainer/config.hpp"

#include "unishard/format/error.hpp"

#include "config/checked_config.hpp"
#include "config/section_readers.hpp"

#include <fmt/format.h>

namespace unishard::trainer {
namespace detail {
namespace {

bool has_word(std::string_view words, std::string_view word) {
  return fmt::format(" {} ", words).find(fmt::format(" {} ", word)) != std::string::npos;
}

}  // namespace

void note_unused(const CheckedConfig& from, std::string_view section, std::string_view type,
                 std::string_view what, std::vector<std::string>& notes) {
  for (const ConfigKey& key : config_keys()) {
    const bool is_used = key.of.empty() || has_word(key.of, type);
    if (key.section == section && !is_used && from.find(path_of(key)))
      notes.push_back(fmt::format("{}: has no effect on this {}", path_of(key), what));
  }
}

namespace {

/// Returns the folder of a monitor; empty when it is off.
std::string monitor_folder(const CheckedConfig& from, std::string_view section) {
  if (!from.boolean(fmt::format("{}.enabled", section))) return "";
  const std::string parent = from.text(fmt::format("{}.output_path", section));
  const std::string job = from.text(fmt::format("{}.job_name", section));
  if (parent.empty()) return job.empty() ? "." : job;
  return fmt::format("{}/{}", parent, job);
}

}  // namespace

void read_monitors(const CheckedConfig& from, Config& config) {
  config.tensorboard_folder = monitor_folder(from, "tensorboard");
  config.csv_folder = monitor_folder(from, "csv_monitor");
}

void read_profilers(const CheckedConfig& from, Config& config) {
  config.wall_clock_breakdown = from.boolean("wall_clock_breakdown");
  config.memory_breakdown = from.boolean("memory_breakdown");
  config.dump_state = from.boolean("dump_state");
  FlopsProfilerOptions& profiler = config.flops_profiler;
  profiler.enabled = from.boolean("flops_profiler.enabled");
  profiler.profile_step = from.integer("flops_profiler.profile_step");
  profiler.recompute_fwd_factor = from.number("flops_profiler.recompute_fwd_factor");
  profiler.detailed = from.boolean("flops_profiler.detailed");
  profiler.output_file = from.given_text("flops_profiler.output_file").value_or("");
}

void read_recomputation(const CheckedConfig& from, Config& config) {
  if (!from.has_section("activation_checkpointing")) return;
  RecomputeOptions options;
  options.cpu_checkpointing = from.boolean("activation_checkpointing.cpu_checkpointing");
  options.contiguous_memory_optimization =
      from.boolean("activation_checkpointing.contiguous_memory_optimization");
  options.number_checkpoints =
      from.given_integer("activation_checkpointing.number_checkpoints").value_or(0);
  options.profile = from.boolean("activation_checkpointing.profile");
  if (options.contiguous_memory_optimization && options.number_checkpoints == 0) {
    raise(ErrorCode::InvalidArgument,
          "configuration: activation_checkpointing.number_checkpoints is missing",
          "contiguous_memory_optimization needs the number of recomputed parts of the model");
  }
  config.activation_checkpointing = options;
}

}  // namespace detail

Config parse_config(const Json& json, const ConfigInputs& inputs) {
  const detail::CheckedConfig from(json, inputs);
  Config config;
  config.notes = from.notes();
  config.node_local_checkpoints = from.boolean("checkpoint.use_node_local_storage");
  config.batch = {.train = from.given_integer("train_batch_size"),
                  .micro = from.given_integer("train_micro_batch_size_per_gpu"),
                  .accumulation = from.given_integer("gradient_accumulation_steps")};
  require_possible_batch(config.batch);
  detail::read_optimizer(from, config);
  detail::read_schedule(from, config);
  detail::read_zero(from, config);
  detail::read_offload(from, config);
  if (config.hyper.min_coeff > config.hyper.max_coeff)
    from.refuse("optimizer.params.min_coeff", "at most optimizer.params.max_coeff");
  detail::read_recomputation(from, config);
  detail::read_monitors(from, config);
  detail::read_profilers(from, config);
  config.gradient_clipping = from.number("gradient_clipping");
  config.steps_per_print = from.integer("steps_per_print");
  const auto canonical_order = from.given_boolean("canonical_order");
  config.canonical_order = canonical_order.value_or(false);
  if (canonical_order && !*canonical_order) config.sum = Sum::Fast;
  config.deterministic = from.given_boolean("deterministic");
  config.non_finite = from.text("non_finite") == "skip" ? NonFinite::Skip : NonFinite::Error;
  config.seed = static_cast<std::uint64_t>(from.integer("seed"));
  detail::read_precision(from, config);
  config.origins = from.origins();
  config.source = from.source();
  return config;
}

}  // namespace unishard::trainer
