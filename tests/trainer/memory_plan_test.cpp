// What `unishard estimate` says of a rank's memory is what the engine then has.
#include "unishard/trainer/memory_plan.hpp"

#include "unishard/trainer/gpt.hpp"

#include "small_model.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

namespace unishard::test {
namespace {

using namespace trainer;

struct PlannedJob {
  std::uint32_t world;
  std::uint32_t stage;
  DType compute;
  Residence optimizer = Residence::Device, parameters = Residence::Device;
  const char* name = "AdamW";
  bool canonical_order = false;
  std::optional<bool> updates_ahead = false;
};

void PrintTo(const PlannedJob& job, std::ostream* out) {
  const auto place = [](Residence residence) {
    return residence == Residence::Device ? "" : residence == Residence::Host ? "Host" : "File";
  };
  *out << job.name << "Stage" << job.stage << name_of(job.compute) << "On" << job.world
       << (job.canonical_order ? "InOrder" : "") << place(job.optimizer) << place(job.parameters)
       << (job.updates_ahead.value_or(job.optimizer == Residence::File) ? "Ahead" : "");
}

class MemoryPlan : public testing::TestWithParam<PlannedJob> {
 protected:
  Config config() const {
    const PlannedJob& job = GetParam();
    Config config = small_config(job.stage, job.compute);
    config.optimizer = job.name;
    config.canonical_order = job.canonical_order;
    config.offload_optimizer = {.residence = job.optimizer,
                                .nvme_path = files_.path().string(),
                                .super_offload = job.updates_ahead};
    config.offload_param = {
        .residence = job.parameters, .nvme_path = files_.path().string(), .max_in_cpu = 0};
    config.aio.block_size = 4096;
    return config;
  }
  TempDir files_;
};

/// GPT-2 with little in what pads its units.
constexpr GptConfig kPlannedShape{.vocabulary = 1000, .context = 32, .layers = 2, .width = 128};
constexpr std::int64_t kBlockElements = 12 * 128 * 128 + 13 * 128;  ///< elements of a block
constexpr std::int64_t kOtherElements = 1000 * 128 + 32 * 128 + 2 * 128;
constexpr std::int64_t kElements = 2 * kBlockElements + kOtherElements;

Gpt built(const Placement& placement) {
  const std::lock_guard lock(construction_mutex());
  const ConstructionScope scope(placement);
  return Gpt(kPlannedShape);
}

/// Returns the bytes of the parts with these names, in memory.
std::int64_t in_memory(const std::vector<PlannedMemory>& parts,
                       const std::vector<std::string_view>& names) {
  std::int64_t bytes = 0;
  for (const PlannedMemory& part : parts) {
    const bool is_named = std::ranges::find(names, part.name) != names.end();
    if (is_named && part.place != Residence::File) bytes += part.bytes;
  }
  return bytes;
}

void train_a_step(Engine& engine, Gpt& model) {
  engine.train_batch([&](const MicroBatch& batch) {
    const auto first = static_cast<std::int64_t>(batch.first_sample);
    return model->loss(at::arange(first, first + batch.samples * 17).view({batch.samples, 17}));
  });
}

/// Two hundredths for the padding of units, and the blocks of files, of which the last is not full.
void expect_near(std::int64_t planned, std::int64_t held) {
  EXPECT_LE(std::abs(planned - held), held / 50) << planned << " planned, " << held << " held";
}

TEST_P(MemoryPlan, IsWhatTheEngineHolds) {
  const Config run = config();
  const std::uint32_t world = GetParam().world;
  const auto plan = plan_memory(run, {.parameters = kElements,
                                      .largest_unit = std::max(kBlockElements, kOtherElements),
                                      .world_size = world,
                                      .computes_on_host = true});
  run_threads(world, [&](Communicator& communicator) {
    Gpt model = built(placement_for(run, communicator));
    Engine engine(model.ptr(), communicator, run, {});
    train_a_step(engine, model);
    const MemoryReport held = engine.memory();
    expect_near(in_memory(plan, {"shards of parameters", "master weights", "optimizer states"}),
                held.master + held.optimizer);
    expect_near(in_memory(plan, {"gradient sums"}), held.gradients);
    expect_near(planned_bytes(plan, Residence::File), held.files);
    const std::int64_t parameters = in_memory(plan, {"parameters", "gathered parameters"});
    EXPECT_LE(held.parameters, parameters + parameters / 50);
    if (!run.folds_every_micro_batch()) return;
    const std::int64_t waiting = in_memory(plan, {"gradients to be reduced, at most"});
    EXPECT_LE(held.reducing_peak, waiting + waiting / 50);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, MemoryPlan,
    testing::Values(
        PlannedJob{2, 0, DType::Float32}, PlannedJob{2, 0, DType::BFloat16},
        PlannedJob{2, 1, DType::Float32}, PlannedJob{3, 1, DType::BFloat16},
        PlannedJob{.world = 2, .stage = 1, .compute = DType::BFloat16, .canonical_order = true},
        PlannedJob{2, 2, DType::Float32}, PlannedJob{3, 2, DType::BFloat16},
        PlannedJob{2, 3, DType::Float32}, PlannedJob{3, 3, DType::BFloat16},
        PlannedJob{1, 3, DType::BFloat16}, PlannedJob{2, 1, DType::BFloat16, Residence::Host},
        PlannedJob{2, 2, DType::Float32, Residence::File},
        PlannedJob{2, 2, DType::BFloat16, Residence::File},
        PlannedJob{2, 3, DType::BFloat16, Residence::Host, Residence::Host},
        PlannedJob{2, 3, DType::BFloat16, Residence::File},
        PlannedJob{2, 3, DType::BFloat16, Residence::File, Residence::File},
        PlannedJob{2, 3, DType::Float32, Residence::File, Residence::File},
        PlannedJob{.world = 2,
                   .stage = 3,
                   .compute = DType::BFloat16,
                   .optimizer = Residence::File,
                   .parameters = Residence::File,
                   .updates_ahead = {}},
        PlannedJob{.world = 2,
                   .stage = 2,
                   .compute = DType::Float32,
                   .optimizer = Residence::File,
                   .updates_ahead = true},
        PlannedJob{.world = 2,
                   .stage = 2,
                   .compute = DType::BFloat16,
                   .optimizer = Residence::File,
                   .updates_ahead = true},
        PlannedJob{2, 2, DType::Float32, Residence::Device, Residence::Device, "Lion"},
        PlannedJob{2, 2, DType::BFloat16, Residence::Device, Residence::Device, "SGD"},
        PlannedJob{2, 3, DType::Float32, Residence::Device, Residence::Device, "Lamb"}),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace unishard::test
