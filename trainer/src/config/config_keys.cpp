#include "unishard/trainer/config_keys.hpp"

#include "unishard/format/edit_distance.hpp"

#include "config/key_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace unishard::trainer {
namespace {

std::vector<ConfigKey> all_keys() {
  std::vector<ConfigKey> keys;
  for (const auto part :
       {detail::run_keys, detail::optimizer_keys, detail::scheduler_keys, detail::precision_keys,
        detail::zero_keys, detail::offload_keys, detail::recomputation_keys,
        detail::observation_keys, detail::feature_keys}) {
    const std::span<const ConfigKey> some = part();
    keys.insert(keys.end(), some.begin(), some.end());
  }
  return keys;
}

constexpr OldKey kOldKeys[] = {
    {"", "bfloat16", "bf16"},
    {"", "fp32_allreduce", "communication_data_type", R"("fp32")"},
    {"", "gradient_accumulation_dtype", "data_types.grad_accum_dtype"},
    {"optimizer.params", "max_grad_norm", "gradient_clipping"},
    {"zero_optimization", "max_live_parameters", "zero_optimization.stage3_max_live_parameters"},
    {"zero_optimization", "max_reuse_distance", "zero_optimization.stage3_max_reuse_distance"},
    {"zero_optimization", "prefetch_bucket_size", "zero_optimization.stage3_prefetch_bucket_size"},
    {"zero_optimization", "param_persistence_threshold",
     "zero_optimization.stage3_param_persistence_threshold"},
    {"zero_optimization", "model_persistence_threshold",
     "zero_optimization.stage3_model_persistence_threshold"},
    {"zero_optimization", "gather_16bit_weights_on_model_save",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
    {"zero_optimization", "gather_fp16_weights_on_model_save",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
    {"zero_optimization", "stage3_gather_fp16_weights_on_model_save",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
    {"zero_optimization", "module_granularity_threshold",
     "zero_optimization.stage3_module_granularity_threshold"},
    {"zero_optimization", "use_all_reduce_for_fetch_params",
     "zero_optimization.stage3_use_all_reduce_for_fetch_params"},
    {"zero_optimization", "allgather_sequential", "zero_optimization.stage3_allgather_sequential"},
    {"zero_optimization", "cpu_offload", "zero_optimization.offload_optimizer",
     R"({"device": "cpu"})"},
    {"zero_optimization", "cpu_offload_param", "zero_optimization.offload_param",
     R"({"device": "cpu"})"},
    {"zero_optimization", "cpu_offload_params", "zero_optimization.offload_param",
     R"({"device": "cpu"})"},
    {"zero_optimization", "cpu_offload_use_pin_memory",
     "zero_optimization.offload_optimizer.pin_memory"},
    {"zero_optimization", "aio", "aio"},
    {"aio", "thread_count", "aio.intra_op_parallelism"},
    {"activation_checkpointing", "partitioned_activations",
     "activation_checkpointing.partition_activations"},
};

}  // namespace

std::span<const ConfigKey> config_keys() {
  static const std::vector<ConfigKey> keys = all_keys();
  return keys;
}

std::span<const OldKey> old_config_keys() { return kOldKeys; }

std::string path_of(const ConfigKey& key) {
  return key.section.empty() ? std::string(key.name) : fmt::format("{}.{}", key.section, key.name);
}

const ConfigKey* find_config_key(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  const std::string_view section = dot == path.npos ? "" : path.substr(0, dot);
  const std::string_view name = dot == path.npos ? path : path.substr(dot + 1);
  const auto found = std::ranges::find_if(config_keys(), [&](const ConfigKey& key) {
    return key.section == section && key.name == name;
  });
  return found == config_keys().end() ? nullptr : &*found;
}

std::string nearest_config_key(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  const std::string_view section = dot == path.npos ? "" : path.substr(0, dot);
  const std::string_view name = dot == path.npos ? path : path.substr(dot + 1);
  std::string_view best;
  std::size_t best_distance = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const ConfigKey& key : config_keys()) {
    if (key.section != section) continue;
    const std::size_t distance = edit_distance(name, key.name);
    if (distance >= best_distance) continue;
    best_distance = distance;
    best = key.name;
  }
  return std::string(best);
}

}  // namespace unishard::trainer
