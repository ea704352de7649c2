#include "unishard/trainer/memory_plan.hpp"

#include <algorithm>

namespace unishard::trainer {
namespace {

constexpr std::int64_t kFloatBytes = 4;

/// Adds up what one rank holds.
class Planner {
 public:
  Planner(const Config& config, const PlannedModel& model)
      : config_(config),
        model_(model),
        is_fp32_(config.compute == DType::Float32),
        weight_bytes_(is_fp32_ ? kFloatBytes : 2),
        shard_((model.parameters + model.world_size - 1) / model.world_size),
        held_(config.stage == 0 ? model.parameters : shard_) {}

  std::vector<PlannedMemory> plan() {
    parameters();
    master();
    optimizer("optimizer states", optimizer_states(config_) * kFloatBytes * held_);
    gradients();
    update_buffers();
    return std::move(parts_);
  }

 private:
  void add(std::string_view name, Residence place, std::int64_t bytes) {
    if (bytes > 0) parts_.push_back({name, place, bytes});
  }

  /// Returns where something is whose residence the configuration says.
  Residence place(Residence residence) const {
    return residence == Residence::Host && model_.computes_on_host ? Residence::Device : residence;
  }

  /// Adds an array that lives where the optimizer's states do.
  void optimizer(std::string_view name, std::int64_t bytes) {
    if (!offloads_optimizer()) return add(name, Residence::Device, bytes);
    const OffloadOptimizer& offload = config_.offload_optimizer;
    const auto away = static_cast<std::int64_t>(offload.ratio * static_cast<double>(bytes));
    add(name, Residence::Device, bytes - away);
    add(name, offload.residence, away);
  }

  /// Adds an array that lives where stage 3's shards of parameters do.
  void parameter_shard(std::string_view name, std::int64_t bytes_of_element) {
    const OffloadParam& offload = config_.offload_param;
    if (offload.residence != Residence::File)
      return add(name, place(offload.residence), bytes_of_element * shard_);
    const std::int64_t in_memory = std::min(shard_, offload.max_in_cpu);
    add(name, place(Residence::Host), bytes_of_element * in_memory);
    add(name, Residence::File, bytes_of_element * (shard_ - in_memory));
  }

  bool offloads_optimizer() const {
    return place(config_.offload_optimizer.residence) != Residence::Device;
  }
  bool offloads_parameters() const {
    return place(config_.offload_param.residence) != Residence::Device;
  }

  /// Returns true when the fp32 parameters of stage 3 are the master weights.
  bool is_both() const {
    return is_fp32_ && config_.stage == 3 &&
           (model_.computes_on_host || offloads_optimizer() == offloads_parameters());
  }

  /// Returns how many elements a rank alone computes with where they are kept.
  std::int64_t borrowed() const {
    if (model_.world_size > 1 || is_both()) return 0;
    const OffloadParam& offload = config_.offload_param;
    if (offload.residence == Residence::File)
      return model_.computes_on_host ? std::min(shard_, offload.max_in_cpu) : 0;
    return place(offload.residence) == Residence::Device ? shard_ : 0;
  }

  void parameters() {
    if (config_.stage < 3)
      return add("parameters", Residence::Device, weight_bytes_ * model_.parameters);
    const std::int64_t live = std::max(config_.zero.max_live_parameters, 2 * model_.largest_unit);
    add("gathered parameters", Residence::Device,
        weight_bytes_ * std::min(model_.parameters - borrowed(), live));
    if (!is_both()) parameter_shard("shards of parameters", weight_bytes_);
  }

  /// Returns true when the parameters in the computation's type are the master weights.
  bool is_master_parameters() const {
    return is_fp32_ && config_.stage < 3 && (!offloads_optimizer() || model_.computes_on_host);
  }

  void master() {
    if (is_master_parameters()) return;
    if (is_both()) return parameter_shard("master weights", kFloatBytes);
    optimizer("master weights", kFloatBytes * held_);
  }

  void gradients() {
    const bool is_whole = config_.stage == 0 || !folds_every_micro_batch();
    add("gradient sums", Residence::Device, is_whole ? kFloatBytes * model_.parameters : 0);
    optimizer("gradient sums", kFloatBytes * shard_);
    const std::int64_t at_most = waiting_gradients() + model_.largest_unit;
    // Sums that are in the host's memory are on the device while gradients are added to them.
    const std::int64_t sums = has_sums_on_host() ? kFloatBytes * at_most / model_.world_size : 0;
    add("gradients to be reduced, at most", Residence::Device, weight_bytes_ * at_most + sums);
  }

  bool has_sums_on_host() const {
    return place(config_.offload_optimizer.residence) == Residence::Host;
  }

  /// Returns how many elements wait at most until the ranks have added them up, without those of
  /// the sums. What is added to whole sums waits in these.
  std::int64_t waiting_gradients() const {
    if (!folds_every_micro_batch() || !config_.zero.overlap_comm) return model_.largest_unit;
    const std::int64_t bucket = config_.zero.reduce_bucket_size;
    const std::int64_t ranks = model_.world_size;
    const std::int64_t own = has_sums_on_host() ? bucket / (ranks + 1) * ranks : bucket;
    const std::int64_t limit = std::max(own, model_.largest_unit);
    const bool is_within = model_.parameters <= limit / accumulation();
    return is_within ? model_.parameters * accumulation() : limit;
  }

  std::int64_t accumulation() const {
    const bool has_batch = config_.batch.train || config_.batch.micro;
    return has_batch ? plan_batch(config_.batch, model_.world_size).accumulation
                     : config_.batch.accumulation.value_or(1);
  }

  /// Returns true when no gradients are added up before the ranks add theirs.
  bool folds_every_micro_batch() const {
    return config_.folds_every_micro_batch() || accumulation() == 1;
  }

  /// Returns true when all that an update of an offloaded unit changes is where the optimizer's
  /// states are, so that there can be two of it.
  bool has_updates_ahead() const {
    const bool has_master_there =
        !is_master_parameters() &&
        (!is_both() || config_.offload_param.residence == config_.offload_optimizer.residence);
    return has_master_there && wants_updates_ahead(config_);
  }

  /// Adds the second copy of what an update changes.
  void updates_ahead() {
    const double bytes = static_cast<double>(kFloatBytes * (1 + optimizer_states(config_)) * held_);
    add("updates ahead", config_.offload_optimizer.residence,
        static_cast<std::int64_t>(config_.offload_optimizer.ratio * bytes));
    const OffloadParam& offload = config_.offload_param;
    if (offload.residence == Residence::File && !is_both())
      add("updates ahead", Residence::File,
          weight_bytes_ * (shard_ - std::min(shard_, offload.max_in_cpu)));
  }

  void update_buffers() {
    const std::int64_t unit = (model_.largest_unit + model_.world_size - 1) / model_.world_size;
    if (config_.offload_optimizer.residence == Residence::File) {
      const std::int64_t tile = elements_of_file_update(config_, held_);
      const std::int64_t arrays = 2 + optimizer_states(config_);
      const std::int64_t most = (held_ + tile - 1) / tile;  // a small model has fewer tiles
      const std::int64_t tiles = std::min(file_updates_in_memory(config_), most);
      const std::int64_t sums = unit;  // of the gradients that are being reduced
      add("buffers of the update", Residence::Host, kFloatBytes * (tiles * tile * arrays + sums));
    } else if (offloads_optimizer()) {
      constexpr std::int64_t kTurns = 2;
      add("buffers of the update", Residence::Host,
          kTurns * weight_bytes_ * std::min(kElementsOfHostUpdate, unit));
    }
    if (offloads_optimizer() && has_updates_ahead()) updates_ahead();
  }

  const Config& config_;
  const PlannedModel& model_;
  bool is_fp32_;
  std::int64_t weight_bytes_;  ///< of an element in the computation's type
  std::int64_t shard_;         ///< elements of a rank's share
  std::int64_t held_;          ///< elements whose optimizer states a rank has
  std::vector<PlannedMemory> parts_;
};

}  // namespace

std::vector<PlannedMemory> plan_memory(const Config& config, const PlannedModel& model) {
  return Planner(config, model).plan();
}

std::int64_t optimizer_states(const Config& config) {
  const OptimizerKind kind = optimizer_kind(config.optimizer);
  const auto states = [](OptimizerKind of, const Hyper& hyper) {
    return static_cast<std::int64_t>(optimizer_state_names(of, hyper).size());
  };
  const bool has_adam = kind == OptimizerKind::Muon;  // for what are no matrices
  return std::max(states(kind, config.hyper),
                  has_adam ? states(OptimizerKind::Adam, config.adam) : std::int64_t{0});
}

bool wants_updates_ahead(const Config& config) {
  const OptimizerKind kind = optimizer_kind(config.optimizer);
  const bool is_elementwise = kind != OptimizerKind::Muon && kind != OptimizerKind::Lamb;
  const OffloadOptimizer& offload = config.offload_optimizer;
  return is_elementwise && offload.residence != Residence::Device &&
         offload.super_offload.value_or(offload.residence == Residence::File);
}

std::int64_t planned_bytes(std::span<const PlannedMemory> parts, Residence place) {
  std::int64_t bytes = 0;
  for (const PlannedMemory& part : parts) bytes += part.place == place ? part.bytes : 0;
  return bytes;
}

std::int64_t elements_of_file_update(const Config& config, std::int64_t held) {
  constexpr std::int64_t kMost = std::int64_t{1} << 20, kLeast = std::int64_t{1} << 18;
  constexpr std::int64_t kPage = 4096;
  const std::int64_t pages = std::max<std::int64_t>((config.aio.block_size + kPage - 1) / kPage, 1);
  const std::int64_t block = pages * kPage / 2;  // elements of 16 bits
  const std::int64_t wanted = std::clamp(held / 512, kLeast, kMost);
  return std::max(block, std::min(wanted, config.zero.sub_group_size) / block * block);
}

std::int64_t file_updates_in_memory(const Config& config) {
  return std::max<std::int64_t>(config.offload_optimizer.buffer_count, 3);
}

}  // namespace unishard::trainer
