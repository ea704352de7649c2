#pragma once
// A training configuration in DeepSpeed's JSON. config_keys.hpp has the table of its keys. An
// unknown key, or a known key that is not supported, is an error and never ignored. A key that is
// accepted and does nothing gets a note.
// Thread safety: a value and a pure function.
#include "unishard/format/dtype.hpp"
#include "unishard/format/json.hpp"
#include "unishard/format/storage.hpp"
#include "unishard/trainer/batch_plan.hpp"
#include "unishard/trainer/offload.hpp"
#include "unishard/trainer/optimizer.hpp"
#include "unishard/trainer/schedule.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::trainer {

/// What a step does whose loss or gradient is NaN or infinite.
enum class NonFinite : std::uint8_t {
  Error,  ///< throws; the training state is as before the step
  Skip,   ///< leaves out the update, counts the step as skipped and takes the next samples
};

/// In which order the gradients of the ranks are added.
enum class Sum : std::uint8_t {
  /// Rank 0's first, then rank 1's, in fp32. With gradients that are summed for each micro-batch,
  /// every world size has the same bits.
  Canonical,
  /// The order in which NCCL adds fastest, in the gradients' own type: the same bits for one world
  /// size, and for one machine's NCCL. Gloo adds in the canonical order all the same: another order
  /// would send no less.
  Fast,
};

/// DeepSpeed's keys of "zero_optimization" that bound communication, with its defaults. They change
/// speed and memory, and no result. Sizes count elements.
struct ZeroLimits {
  bool overlap_comm = true;                       ///< false: every collective is waited for at once
  std::int64_t reduce_bucket_size = 500'000'000;  ///< gradients that wait to be reduced
  std::int64_t allgather_bucket_size = 500'000'000;  ///< weights that are shared at a time
  /// Stage 3: gathered before they are used; 0: nothing, else at least one unit.
  std::int64_t prefetch_bucket_size = 50'000'000;
  std::int64_t max_live_parameters = 1'000'000'000;  ///< stage 3: gathered at a time
  std::int64_t max_reuse_distance = 1'000'000'000;   ///< stage 3: kept if used again within it
  /// Stage 3: units of at most this size stay gathered. Units are larger than DeepSpeed's
  /// parameters, so the default is 0.
  std::int64_t param_persistence_threshold = 0;
  std::int64_t sub_group_size = 1'000'000'000;  ///< elements that are updated at a time
};

/// DeepSpeed's "activation_checkpointing".
struct RecomputeOptions {
  bool cpu_checkpointing = false;  ///< inputs wait in host memory
  /// Inputs wait in one piece of memory for `number_checkpoints` of them, which is allocated once.
  bool contiguous_memory_optimization = false;
  std::int64_t number_checkpoints = 0;
  bool profile = false;  ///< measure times
};

/// Loss scaling of fp16 training, by DeepSpeed's keys.
struct Fp16 {
  bool auto_cast = false;  ///< casts to fp16 the floating-point inputs of units outside of others
  double loss_scale = 0;   ///< above 0: static; 0: dynamic, by the values below
  std::int64_t initial_scale_power = 16;  ///< the first scale is 2 to this power
  std::int64_t loss_scale_window = 1000;  ///< steps without an overflow that double the scale
  std::int64_t hysteresis = 2;            ///< overflows until the scale is halved
  bool consecutive_hysteresis = false;    ///< a step without an overflow begins their count anew
  std::int64_t min_loss_scale = 1;
  bool raise_error_at_min_scale = true;  ///< DeepSpeed's default, for which it has no key
};

/// DeepSpeed's "flops_profiler".
struct FlopsProfilerOptions {
  bool enabled = false;
  std::int64_t profile_step = 1;    ///< the step that is profiled
  double recompute_fwd_factor = 0;  ///< share of the forward pass that is computed again
  bool detailed = true;             ///< a line for each unit
  std::string output_file;          ///< empty: standard output
};

/// The origin of a value of the configuration.
enum class Origin : std::uint8_t {
  Default,  ///< the key is not given
  File,
  Auto,  ///< "auto" in the file, resolved as the Hugging Face Trainer does
  Flag,  ///< an option of the program, which precedes the file
};

struct Config {
  BatchRequest batch;
  std::string optimizer = "AdamW";
  Hyper hyper;
  Hyper adam;  ///< Muon: of the parameters that are not its matrices
  Schedule schedule;
  std::uint32_t stage = 0;
  DType compute = DType::Float32;     ///< BFloat16 and Float16 have fp32 master weights
  Fp16 fp16;                          ///< used when `compute` is Float16
  double gradient_clipping = 1.0;     ///< 0: off
  std::int64_t steps_per_print = 10;  ///< 0: never
  /// Extension: sum gradients in the order of global micro-batches at stages 0 and 1 too, so that
  /// every world size and stage gives the same bits. Stages 2 and 3 always do.
  bool canonical_order = false;
  /// Extension: operations on a device take ways that give the same bits each time. Without a
  /// value, as `canonical_order` is.
  std::optional<bool> deterministic;
  Sum sum = Sum::Canonical;  ///< Fast when the configuration has "canonical_order": false
  ZeroLimits zero;
  OffloadOptimizer offload_optimizer;
  OffloadParam offload_param;
  AioOptions aio;
  /// How the model recomputes activations, if it does; see Recompute.
  std::optional<RecomputeOptions> activation_checkpointing;
  NonFinite non_finite = NonFinite::Error;  ///< extension
  /// DeepSpeed's "checkpoint.use_node_local_storage": each node saves the shards of its own ranks,
  /// and the manifest, to a folder of its own.
  bool node_local_checkpoints = false;
  bool wall_clock_breakdown = false;  ///< the program prints the times of a step's parts
  bool memory_breakdown = false;      ///< the program prints each rank's memory
  bool dump_state = false;            ///< the program prints the configuration first
  FlopsProfilerOptions flops_profiler;
  /// Folders of "csv_monitor" and "tensorboard", to which the program writes; empty: switched off.
  std::string csv_folder, tensorboard_folder;
  std::uint64_t seed = 1234;  ///< extension: seed of initial values and dropout
  /// The JSON it was read from, with today's names of keys and with values for "auto".
  Json source = Json::object();
  std::map<std::string, Origin> origins;  ///< by the path of a key; absent: DeepSpeed's default
  std::vector<std::string> notes;         ///< what a reader of the file may not expect

  bool folds_every_micro_batch() const { return stage >= 2 || canonical_order; }
  bool offloads() const {
    return offload_optimizer.residence != Residence::Device ||
           offload_param.residence != Residence::Device;
  }
  bool is_deterministic() const { return deterministic.value_or(canonical_order); }
};

/// What a configuration takes from outside of its file.
struct ConfigInputs {
  std::map<std::string, Json> flags;        ///< values by the path of a key
  std::optional<std::int64_t> hidden_size;  ///< of the model, for "auto" bucket sizes
  std::optional<std::int64_t> steps;        ///< of the run, for an "auto" total_num_steps
};

/// Throws: InvalidArgument, naming the JSON path and, for an unknown key, the nearest known one.
Config parse_config(const Json& json, const ConfigInputs& inputs = {});

/// Parses a configuration file. As in DeepSpeed, it may have comments (//, #, /* */) and commas
/// before a closing bracket.
/// Throws: InvalidArgument, naming `what`, because the user wrote the file.
Json parse_config_text(std::string_view text, std::string_view what);
/// Reads and parses a configuration file.
/// Throws: NotFound and Io; InvalidArgument for a folder, for more than 16 MiB, and as
/// parse_config_text() does.
Json read_config_file(const Path& file);

}  // namespace unishard::trainer
