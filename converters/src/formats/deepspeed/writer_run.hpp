#pragma once
// What DeepSpeed's files record about a run besides tensors: counters, scheduler, loss scaler,
// settings, configuration and client state.
#include "unishard/format/catalog.hpp"

#include "containers/archive_draft.hpp"
#include "containers/inline_tensors.hpp"
#include "containers/pickle_writer.hpp"
#include "formats/deepspeed/writer_model.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace unishard::converters::deepspeed_sink {

/// Version of the layout that is written.
inline constexpr std::string_view kDeepSpeedVersion = "0.19.8";

struct RunFacts {
  Json scheduler;                ///< null when there is none
  Json loss_scaler;              ///< all fields of DeepSpeed's LossScaler or DynamicLossScaler
  bool has_loss_scaler = false;  ///< false: `loss_scaler` is that of a run without scaling
  Json config;                   ///< DeepSpeed's configuration, null when unknown
  Json client_state;             ///< an object, merged into the model file
  std::map<std::string, torch::InlineTensor> tensors;  ///< those that client_state names
  std::int64_t global_steps = 0, skipped_steps = 0;
  std::optional<std::int64_t> global_samples;
  std::optional<double> clip_grad;

  bool scales_dynamically() const { return loss_scaler["dynamic"] == true; }
};

/// Returns the facts of the run. What DeepSpeed has no key for is stored in
/// client_state["unishard"]; what cannot be stored there either is added to `notes`.
RunFacts describe_run(const Catalog& catalog, const SinkModel& model,
                      std::vector<std::string>& notes);

/// Gives a client state the widths of one rank that has all tensors whole, where it has those of
/// the ranks of the run that was read: ds_to_universal asks for one width for each rank.
void join_shard_widths(Json& client_state);

/// Writes JSON without tensors, as describe_run() returns it.
void write_plain(torch::PickleWriter& pickle, const Json& value);
/// Writes the keys loss_scaler, dynamic_loss_scale and overflow into an open dict.
void write_scaling(torch::PickleWriter& pickle, const RunFacts& run);
/// Writes the user's keys and "unishard" into an open dict.
void write_client_state(torch::ArchiveDraft& file, const RunFacts& run);
/// Writes one entry of `param_groups`.
void write_group(torch::PickleWriter& pickle, const SinkGroup& group,
                 std::span<const std::int64_t> params);
/// Writes the keys lr_scheduler to global_samples into an open dict.
void write_progress(torch::PickleWriter& pickle, const RunFacts& run);
/// Writes the last keys of every file of the run: ds_config and ds_version.
void write_origin(torch::PickleWriter& pickle, const RunFacts& run);

}  // namespace unishard::converters::deepspeed_sink
