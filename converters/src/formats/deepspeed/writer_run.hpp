#pragma once
// What DeepSpeed's files say of a run besides tensors: counters, scheduler, loss scaler, settings,
// configuration and what the user put in.
#include "unishard/format/catalog.hpp"

#include "containers/pickle_writer.hpp"
#include "formats/deepspeed/writer_model.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace unishard::converters::deepspeed_sink {

inline constexpr std::string_view kDeepSpeedVersion = "0.19.8";  ///< whose layout is written

struct RunFacts {
  Json scheduler;                ///< null when there is none
  Json loss_scaler;              ///< all fields of DeepSpeed's LossScaler or DynamicLossScaler
  bool has_loss_scaler = false;  ///< false: `loss_scaler` is the one of every run without scaling
  Json config;                   ///< DeepSpeed's configuration, null when unknown
  Json client_state;             ///< an object, merged into the model file
  std::int64_t global_steps = 0, skipped_steps = 0;
  std::optional<std::int64_t> global_samples;
  std::optional<double> clip_grad;

  bool scales_dynamically() const { return loss_scaler["dynamic"] == true; }
};

/// What DeepSpeed has no place for goes to client_state["unishard"]; what not even that can hold is
/// told in `notes`.
RunFacts describe_run(const Catalog& catalog, const SinkModel& model,
                      std::vector<std::string>& notes);

/// JSON without tensors, as describe_run() leaves it.
void write_plain(torch::PickleWriter& pickle, const Json& value);
/// The keys loss_scaler, dynamic_loss_scale, overflow, in an open dict.
void write_scaling(torch::PickleWriter& pickle, const RunFacts& run);
/// The user's keys and "unishard", in an open dict.
void write_client_state(torch::PickleWriter& pickle, const RunFacts& run);
/// One entry of `param_groups`.
void write_group(torch::PickleWriter& pickle, const SinkGroup& group,
                 std::span<const std::int64_t> params);
/// The keys lr_scheduler … global_samples, in an open dict.
void write_progress(torch::PickleWriter& pickle, const RunFacts& run);
/// The keys that every file of the run ends with: ds_config, ds_version.
void write_origin(torch::PickleWriter& pickle, const RunFacts& run);

}  // namespace unishard::converters::deepspeed_sink
