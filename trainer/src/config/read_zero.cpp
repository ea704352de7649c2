#include "unishard/format/error.hpp"
#include "unishard/trainer/memory_plan.hpp"

#include "config/section_readers.hpp"

#include <fmt/format.h>

namespace unishard::trainer::detail {
namespace {

constexpr std::string_view kOffloadOptimizer = "zero_optimization.offload_optimizer";
constexpr std::string_view kOffloadParam = "zero_optimization.offload_param";

std::string offload_path(std::string_view section, std::string_view name) {
  return fmt::format("{}.{}", section, name);
}

/// Reads "device" and "nvme_path" of a section.
Residence residence_of(const CheckedConfig& from, std::string_view section, std::string& folder) {
  folder = from.given_text(offload_path(section, "nvme_path")).value_or("");
  const std::string device = from.text(offload_path(section, "device"));
  if (device == "none") return Residence::Device;
  if (device == "cpu") return Residence::Host;
  if (folder.empty()) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("configuration: {}.nvme_path is missing", section),
          "it names the folder of the files for the device nvme");
  }
  return Residence::File;
}

/// What a stage does not shard cannot be offloaded. DeepSpeed ignores the section then.
Residence at_stage(Residence asked, std::string_view section, std::uint32_t least, Config& config) {
  if (asked == Residence::Device || config.stage >= least) return asked;
  config.notes.push_back(
      fmt::format("{}: has no effect below stage {}, as in DeepSpeed", section, least));
  return Residence::Device;
}

}  // namespace

void read_zero(const CheckedConfig& from, Config& config) {
  config.stage = static_cast<std::uint32_t>(from.integer("zero_optimization.stage"));
  ZeroLimits& limits = config.zero;
  const auto size = [&](std::string_view name) {
    return from.integer(fmt::format("zero_optimization.{}", name));
  };
  limits.overlap_comm = from.boolean("zero_optimization.overlap_comm");
  limits.reduce_bucket_size = size("reduce_bucket_size");
  limits.allgather_bucket_size = size("allgather_bucket_size");
  limits.prefetch_bucket_size = size("stage3_prefetch_bucket_size");
  limits.max_live_parameters = size("stage3_max_live_parameters");
  limits.max_reuse_distance = size("stage3_max_reuse_distance");
  limits.param_persistence_threshold = size("stage3_param_persistence_threshold");
  if (const std::int64_t elements = size("sub_group_size"); elements > 0)
    limits.sub_group_size = elements;
}

void read_offload(const CheckedConfig& from, Config& config) {
  OffloadOptimizer& optimizer = config.offload_optimizer;
  optimizer.residence = at_stage(residence_of(from, kOffloadOptimizer, optimizer.nvme_path),
                                 kOffloadOptimizer, 1, config);
  optimizer.buffer_count = from.integer(offload_path(kOffloadOptimizer, "buffer_count"));
  optimizer.ratio = from.number(offload_path(kOffloadOptimizer, "ratio"));
  optimizer.super_offload = from.given_boolean(offload_path(kOffloadOptimizer, "super_offload"));
  if (optimizer.super_offload.value_or(false) && optimizer.residence == Residence::Device)
    config.notes.push_back(
        fmt::format("{}: has no effect without \"device\": \"cpu\" or \"nvme\": what a device has "
                    "is updated after the backward pass",
                    offload_path(kOffloadOptimizer, "super_offload")));
  else if (optimizer.super_offload.value_or(false) && !wants_updates_ahead(config))
    config.notes.push_back(
        fmt::format("{}: has no effect: {} needs the norms of all gradients, or whole matrices",
                    offload_path(kOffloadOptimizer, "super_offload"), config.optimizer));
  OffloadParam& param = config.offload_param;
  param.residence =
      at_stage(residence_of(from, kOffloadParam, param.nvme_path), kOffloadParam, 3, config);
  param.max_in_cpu = from.integer(offload_path(kOffloadParam, "max_in_cpu"));
  config.aio = {.block_size = from.integer("aio.block_size"),
                .threads = from.integer("aio.intra_op_parallelism")};
}

}  // namespace unishard::trainer::detail
