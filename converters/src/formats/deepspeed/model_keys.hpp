#pragma once
// The keys of a model file that DeepSpeed itself writes. All others are the user's client state.
#include <algorithm>
#include <array>
#include <string_view>

namespace unishard::converters {

inline constexpr std::array<std::string_view, 23> kDeepSpeedKeys = {
    "module",
    "buffer_names",
    "optimizer",
    "param_shapes",
    "frozen_param_shapes",
    "shared_params",
    "frozen_param_fragments",
    "lr_scheduler",
    "data_sampler",
    "random_ltd",
    "sparse_tensor_module_names",
    "csr_tensor_module_names",
    "skipped_steps",
    "global_steps",
    "global_samples",
    "dp_world_size",
    "mp_world_size",
    "checkpoint_parallel_dimensions",
    "ds_config",
    "ds_version",
    "num_experts",
    "ds_autoep_layers",
    "folding",
};

/// Key in Catalog::producer and in UniShard's section of a model file: true when the checksums of
/// the input were not compared.
inline constexpr const char* kUncheckedInput = "unchecked_input";

/// Key in UniShard's section: the parameters of each group, where a group has frozen ones, which
/// DeepSpeed's optimizers leave out.
inline constexpr const char* kGroupMembers = "group_members";

/// Key in UniShard's section: [number, settings] of each group without trainable parameters, which
/// DeepSpeed removes from an optimizer.
inline constexpr const char* kIdleGroups = "idle_groups";

/// Key in UniShard's section: the parameters in float32 or float64 of a run in 16 bits, which are
/// no weights that were rounded, although the module has them in 16 bits.
inline constexpr const char* kWideWeights = "wide_weights";

inline bool is_deepspeed_key(std::string_view key) {
  return std::ranges::count(kDeepSpeedKeys, key) > 0;
}

}  // namespace unishard::converters
