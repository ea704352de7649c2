// Not a test itself: one rank of a group of processes that runs many short training jobs, so that
// process start-up is paid once. Job k uses ranks k, k+1, ... (mod size) as a group of its own.
//
//   matrix_driver <folder> <gpt|llama|adapted>[:OPTIMIZER:SCHEDULE] <float32|bfloat16|float16>
//   <stages, e.g. 0123> <world sizes, e.g. 12345> [cpu|guarded|cuda|nccl]
//
// On "guarded", the device of the tests, jobs must have the CPU's bits; on "cuda" ranks share the
// devices and talk by Gloo, and with "nccl" each has one of its own.
//
// 1. Every process trains alone, uninterrupted: the losses and the identity that all others must
// have.
// 2. For every (stage, W): train half of the steps, compare the losses, save.
// 3. For every (stage, W) -> (stage', W'): resume, train the rest, compare the losses and the final
// identity. Prints one line per failure and a line of counts; exits 0 when all agree.
#include "unishard/format/error.hpp"
#include "unishard/trainer/causal_language_model.hpp"
#include "unishard/trainer/construction.hpp"
#include "unishard/trainer/engine.hpp"
#include "unishard/trainer/runtime.hpp"
#include "unishard/trainer/seeds.hpp"

#include "adapted_model.hpp"
#include "guarded_runtime.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <stdexcept>

namespace {

using namespace unishard;
using namespace unishard::trainer;

constexpr std::int64_t kSteps = 4;
constexpr std::int64_t kSaveStep = 2;
constexpr std::int64_t kVocabulary = 64;
constexpr std::int64_t kContext = 12;

/// The Llama has all that the family has: shared key heads, biases, norms of queries and keys, a
/// layer with a window, and a scaled rotary embedding. Its attention has no dropout, so that it is
/// fused where LibTorch can.
ModelConfig model_named(const std::string& name) {
  if (name == "gpt")
    return GptConfig{.vocabulary = kVocabulary,
                     .context = kContext,
                     .layers = 2,
                     .width = 16,
                     .heads = 2,
                     .dropout = 0.1};
  LlamaConfig llama{.family = LlamaFamily::Qwen3,
                    .vocabulary = kVocabulary,
                    .positions = kContext,
                    .layers = 2,
                    .width = 16,
                    .inner = 24,
                    .heads = 2,
                    .kv_heads = 1};
  llama.qkv_bias = llama.output_bias = llama.qk_norm = true;
  llama.window = 5;
  llama.sliding = {false, true};
  llama.rotary = {.scaling = RotaryScaling::Yarn, .factor = 2, .original_positions = 6};
  return llama;
}

/// "adapted" is a frozen base with adapters.
std::shared_ptr<CausalLanguageModel> make_model(const std::string& name) {
  if (name == "adapted")
    return test::AdaptedModel(test::AdaptedSizes{.vocabulary = kVocabulary}).ptr();
  return make_language_model(model_named(name));
}

/// Where a job keeps its training state.
struct Offload {
  OffloadOptimizer optimizer = {};
  OffloadParam param = {};
};

/// A model and how it is trained, as in "gpt:Lion:OneCycle".
struct Recipe {
  std::string model, optimizer = "AdamW", schedule = "WarmupLR";

  explicit Recipe(const std::string& text) : model(text.substr(0, text.find(':'))) {
    if (model.size() == text.size()) return;
    const std::size_t second = text.find(':', model.size() + 1);
    if (second == text.npos) throw std::invalid_argument("no schedule in " + text);
    optimizer = text.substr(model.size() + 1, second - model.size() - 1);
    schedule = text.substr(second + 1);
  }
};

/// Schedules whose rates differ in each step of a job.
Schedule schedule_named(const std::string& name) {
  Schedule schedule{.warmup_max_lr = 3e-3,
                    .warmup_num_steps = 3,
                    .total_num_steps = 6,
                    .warmup_min_ratio = 0.1,
                    .one_cycle = {.min_lr = 1e-3,
                                  .max_lr = 4e-3,
                                  .decay_lr_rate = 0.5,
                                  .first_step_size = 2,
                                  .second_step_size = 1,
                                  .decay_step_size = 1},
                    .range_test = {.min_lr = 1e-3, .step_size = 2}};
  for (const ScheduleKind kind :
       {ScheduleKind::WarmupLR, ScheduleKind::WarmupDecayLR, ScheduleKind::WarmupCosineLR,
        ScheduleKind::OneCycle, ScheduleKind::LRRangeTest}) {
    schedule.kind = kind;
    if (name == name_of(kind)) return schedule;
  }
  throw std::invalid_argument("no schedule is called " + name);
}

Config config_for(const Recipe& recipe, std::uint32_t stage, const std::string& dtype,
                  const ZeroLimits& zero, const Offload& offload) {
  Config config;
  config.batch = {.train = 6, .micro = 1, .accumulation = {}};
  config.optimizer = recipe.optimizer;
  config.hyper = {.lr = 3e-3, .beta2 = 0.95, .weight_decay = 0.1};
  config.adam = config.hyper;  // of Muon
  if (recipe.optimizer == "SGD") config.hyper.momentum = 0.9;
  if (recipe.optimizer == "Muon") config.hyper.momentum = 0.95;
  config.schedule = schedule_named(recipe.schedule);
  config.stage = stage;
  config.compute = dtype_from_name(dtype).value();
  // Steps overflow until the scale fits; then it grows until one overflows again.
  config.fp16.initial_scale_power = 22;
  config.fp16.loss_scale_window = config.fp16.hysteresis = 1;
  config.canonical_order = true;
  config.zero = zero;
  config.zero.sub_group_size = 5000;
  config.offload_optimizer = offload.optimizer;
  config.offload_param = offload.param;
  config.aio.block_size = 4096;
  return config;
}

/// Tokens as a function of the global sample index alone.
at::Tensor windows(const MicroBatch& batch) {
  const std::int64_t length = kContext + 1;
  at::Tensor tokens = at::empty({batch.samples, length}, at::kLong);
  auto* data = tokens.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < batch.samples * length; ++i) {
    const std::uint64_t seed = seed_from({batch.first_sample, static_cast<std::uint64_t>(i) / 3});
    data[i] = static_cast<std::int64_t>(seed % static_cast<std::uint64_t>(kVocabulary));
  }
  return tokens;
}

struct Outcome {
  std::vector<double> losses;      ///< also of steps that were left out
  std::ptrdiff_t until_saved = 0;  ///< losses of the steps up to kSaveStep
  std::int64_t skipped = 0;        ///< steps
  std::string identity;
};

struct Job {
  Recipe recipe;
  std::uint32_t stage = 0;
  std::string dtype;
  std::int64_t until = kSteps;
  Path from;  ///< empty: fresh
  Path save_to;
  ZeroLimits zero = {};
  Offload offload = {};
  bool recomputes = false;  ///< activations
};

/// Limits that differ from job to job: results must not depend on them.
ZeroLimits limits_of(std::uint32_t job) {
  const std::int64_t unit = 4096;
  return {.overlap_comm = job % 5 != 0,
          .reduce_bucket_size = job % 3 == 0 ? 0 : 3 * unit,
          .allgather_bucket_size = job % 2 == 0 ? unit : 100 * unit,
          .prefetch_bucket_size = unit * (job % 4),
          .max_live_parameters = unit * (1 + job % 7),
          .max_reuse_distance = job % 2 == 0 ? 0 : 100 * unit,
          .param_persistence_threshold = job % 6 == 0 ? 2 * unit : 0};
}

/// Places that differ from job to job, as far as the stage allows: results must not depend on them.
Offload offload_of(std::uint32_t job, const Job& what_for, const Path& folder) {
  Offload offload;
  const std::uint32_t stage = what_for.stage;
  if (stage == 0 || what_for.recipe.optimizer == "Lamb") return offload;
  const auto place = [&](auto& what, Residence residence) {
    what.residence = residence;
    if (residence == Residence::File) what.nvme_path = (folder / "nvme").string();
  };
  constexpr Residence kPlaces[] = {Residence::Device, Residence::Host, Residence::File};
  place(offload.optimizer, kPlaces[job % 3]);
  if (stage == 3) place(offload.param, kPlaces[job / 3 % 3]);
  offload.optimizer.ratio = job % 4 == 1 ? 0.5 : 1;
  offload.optimizer.super_offload = job % 4 != 2;
  offload.param.max_in_cpu = job % 4 == 3 ? 3000 : 0;
  return offload;
}

enum class Where { Cpu, Guarded, Cuda, Nccl };

Where place_named(const std::string& name) {
  if (name == "cpu") return Where::Cpu;
  if (name == "guarded") return Where::Guarded;
  if (name == "cuda") return Where::Cuda;
  if (name == "nccl") return Where::Nccl;
  throw std::invalid_argument("no device is called " + name);
}

std::unique_ptr<Runtime> make_runtime(Where where, const RankEnvironment& environment) {
  if (where == Where::Cpu) return make_host_runtime();
  if (where == Where::Guarded) return test::make_guarded_runtime();
  return make_cuda_runtime({.device = cuda_device_of(environment.local_rank)});
}

Outcome run(const Job& job, Communicator& communicator, Runtime& runtime) {
  const Config config = config_for(job.recipe, job.stage, job.dtype, job.zero, job.offload);
  std::shared_ptr<CausalLanguageModel> model;
  {
    const ConstructionScope scope(placement_for(config, communicator, runtime.device()));
    model = make_model(job.recipe.model);
    if (job.recomputes) model->recompute_blocks({});
  }
  Engine engine(model, communicator, config, {.runtime = &runtime});
  if (!job.from.empty()) engine.load_checkpoint(job.from);
  Outcome outcome;
  while (engine.global_steps() < job.until) {
    outcome.losses.push_back(engine
                                 .train_batch([&](const MicroBatch& batch) {
                                   // Draws of the user's own code are equal everywhere too.
                                   return model->loss(windows(batch).to(runtime.device())) *
                                          (1 + 0.1 * at::rand({}).item<double>());
                                 })
                                 .loss);
    if (engine.global_steps() == kSaveStep && outcome.until_saved == 0)
      outcome.until_saved = std::ssize(outcome.losses);
  }
  outcome.skipped = engine.skipped_steps();
  outcome.identity = engine.save_checkpoint({.folder = job.save_to, .tag = "t"}).wait().identity;
  return outcome;
}

class Driver {
 public:
  Driver(Path folder, Recipe recipe, std::string dtype, RankEnvironment environment, Where where)
      : where_(where),
        folder_(std::move(folder)),
        recipe_(std::move(recipe)),
        dtype_(std::move(dtype)),
        environment_(std::move(environment)) {}

  void reference() {
    const auto alone = make_single_communicator();
    const auto runtime = make_runtime(where_ == Where::Guarded ? Where::Cpu : where_, environment_);
    reference_ = run(
        {.recipe = recipe_, .stage = 0, .dtype = dtype_, .from = {}, .save_to = own("reference")},
        *alone, *runtime);
    if (dtype_ == "float16" && reference_.skipped == 0)
      throw std::runtime_error("the loss scale does not move");
  }

  void saves(const std::string& stages, const std::string& worlds) {
    for (const char stage : stages) {
      for (const char world : worlds) {
        const Path target = folder_ / fmt::format("saved-{}-{}", stage, world);
        check(world,
              {.recipe = recipe_,
               .stage = digit(stage),
               .dtype = dtype_,
               .until = kSaveStep,
               .from = {},
               .save_to = target},
              fmt::format("save {},{}", stage, world));
      }
    }
  }

  void resumes(const std::string& stages, const std::string& worlds) {
    for (const char stage : stages) {
      for (const char world : worlds) {
        const Path source = folder_ / fmt::format("saved-{}-{}", stage, world);
        for (const char to_stage : stages) {
          for (const char to_world : worlds) {
            const std::string name =
                fmt::format("{},{} -> {},{}", stage, world, to_stage, to_world);
            const Path target = folder_ / fmt::format("job-{}", job_);
            check(to_world,
                  {.recipe = recipe_,
                   .stage = digit(to_stage),
                   .dtype = dtype_,
                   .from = source,
                   .save_to = target},
                  name);
          }
        }
      }
    }
  }

  int finish(Communicator& world) {
    const auto counts = gather_doubles(
        world, std::vector<double>{static_cast<double>(done_), static_cast<double>(bad_)});
    double done = 0, bad = 0;
    for (std::size_t i = 0; i < counts.size(); i += 2) {
      done += counts[i];
      bad += counts[i + 1];
    }
    if (world.rank() == 0)
      fmt::print("{} jobs, {} differ, identity {}\n", done, bad, reference_.identity);
    return bad == 0 ? 0 : 1;
  }

 private:
  static std::uint32_t digit(char text) { return static_cast<std::uint32_t>(text - '0'); }
  Path own(const std::string& name) const {
    return folder_ / fmt::format("{}-{}", name, environment_.rank);
  }

  /// Runs the job if this process is one of its ranks; the group's rank 0 compares.
  void check(char world, Job job, const std::string& name) {
    const std::uint32_t size = digit(world);
    const std::uint32_t number = job_++;
    job.zero = limits_of(number);
    job.offload = offload_of(number, job, folder_);
    job.recomputes = number % 8 >= 4;
    const std::uint32_t all = environment_.world_size;
    RankEnvironment group = environment_;
    group.rank = (environment_.rank + all - number % all) % all;
    group.world_size = size;
    group.store_is_hosted = true;
    group.group = fmt::format("job/{}", number);
    if (group.rank >= size) return;
    const auto communicator = make_communicator(
        group,
        {.backend = where_ == Where::Nccl ? Backend::Nccl : Backend::Gloo, .timeout_seconds = 60});
    const auto runtime = make_runtime(where_, environment_);
    const Outcome outcome = run(job, *communicator, *runtime);
    communicator->barrier();
    if (group.rank != 0) return;
    ++done_;
    const auto first = reference_.losses.begin() + (job.from.empty() ? 0 : reference_.until_saved);
    const auto last = job.until == kSteps ? reference_.losses.end()
                                          : reference_.losses.begin() + reference_.until_saved;
    const std::vector<double> expected(first, last);
    const bool same_end = job.until < kSteps || outcome.identity == reference_.identity;
    if (outcome.losses != expected || !same_end) {
      ++bad_;
      fmt::print("DIFFERS {}: losses {} identity {}\n", name,
                 outcome.losses == expected ? "equal" : "differ", outcome.identity);
    }
    if (job.until == kSteps) std::filesystem::remove_all(job.save_to);
  }

  Where where_;
  Path folder_;
  Recipe recipe_;
  std::string dtype_;
  RankEnvironment environment_;
  Outcome reference_;
  std::uint32_t job_ = 0;
  int done_ = 0, bad_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6 && argc != 7) return 2;
  at::set_num_threads(1);
  try {
    const RankEnvironment environment = read_rank_environment([](const std::string& name) {
      const char* value = std::getenv(name.c_str());
      return value ? std::optional<std::string>(value) : std::nullopt;
    });
    const auto world = make_communicator(environment, {.timeout_seconds = 600});
    const Where where = argc == 7 ? place_named(argv[6]) : Where::Cpu;
    // Before the first backward pass, which counts the devices.
    if (where == Where::Guarded) test::make_guarded_runtime();
    Driver driver(argv[1], Recipe(argv[2]), argv[3], environment, where);
    driver.reference();
    driver.saves(argv[4], argv[5]);
    world->barrier();
    driver.resumes(argv[4], argv[5]);
    const int status = driver.finish(*world);
    world->barrier();
    return status;
  } catch (const std::exception& error) {
    fmt::print(stderr, "matrix_driver: {}\n", error.what());
    return 3;
  }
}
