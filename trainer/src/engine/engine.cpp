#include "unishard/trainer/engine.hpp"

#include "unishard/format/error.hpp"

#include "checkpoint/load.hpp"
#include "checkpoint/saver.hpp"
#include "comm/operation_scope.hpp"
#include "comm/tensor_collectives.hpp"
#include "engine/gradient_norm.hpp"
#include "engine/micro_batches.hpp"
#include "engine/non_finite.hpp"
#include "engine/rank_agreement.hpp"
#include "engine/update.hpp"
#include "state/attachment.hpp"
#include "state/gather_schedule.hpp"
#include "state/training_state.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <cmath>
#include <numeric>

namespace unishard::trainer {

using Pass = detail::MicroBatches::Pass;

namespace {

/// Puts a model in evaluation mode, and back in training mode when destroyed.
class EvaluationScope {
 public:
  explicit EvaluationScope(torch::nn::Module& model) : model_(model) { model_.eval(); }
  ~EvaluationScope() { model_.train(); }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  torch::nn::Module& model_;
};

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

EngineOptions with_storage(EngineOptions options) {
  if (!options.storage) options.storage = &posix_storage();
  return options;
}

detail::TrainingState initial_state(const Config& config, const EngineOptions& options,
                                    const Communicator& communicator) {
  detail::TrainingState state;
  state.config = config;
  state.batch = plan_batch(config.batch, communicator.size());
  state.optimizer = make_optimizer(config.optimizer, config.hyper);
  state.groups = {{{"decay", config.hyper}, {"no_decay", config.hyper}}};
  state.groups[1].hyper.weight_decay = 0;
  state.seed = config.seed;
  state.shuffle_seed = options.shuffle_seed;
  state.samples_per_epoch = options.samples_per_epoch;
  return state;
}

/// Nothing is changed in the model when the ranks differ.
detail::TrainingState take_over(const std::shared_ptr<torch::nn::Module>& model,
                                Communicator& communicator, const Config& config,
                                const EngineOptions& options, at::Device device) {
  detail::TrainingState state = initial_state(config, options, communicator);
  detail::require_equal_runs(communicator, detail::describe_run(*model, config, options));
  state.model = detail::take_over(*model, placement_for(config, communicator, device),
                                  detail::take_left_root(model));
  return state;
}

std::int64_t overlapped(const Config& config, std::int64_t limit) {
  return config.zero.overlap_comm ? limit : 0;
}

detail::GatherLimits gather_limits(const Config& config) {
  return {.prefetch = overlapped(config, config.zero.prefetch_bucket_size),
          .live = config.zero.max_live_parameters,
          .reuse = config.zero.max_reuse_distance};
}

detail::AttachmentOptions attachment_options(const detail::TrainingState& state) {
  return {.reduction = state.config.folds_every_micro_batch() ? detail::Reduction::FoldEach
                                                              : detail::Reduction::FoldOnce,
          .states = state.optimizer->state_names().size(),
          .persistent = state.config.zero.param_persistence_threshold};
}

}  // namespace

struct Engine::Impl {
  Impl(const std::shared_ptr<torch::nn::Module>& the_model, Communicator& the_communicator,
       const Config& config, EngineOptions the_options);

  StepStats finish_step(const std::vector<double>& losses);
  void leave_out(const std::vector<double>& losses);
  /// True when units are gathered or reduced one by one within a micro-batch.
  bool depends_on_order() const {
    return communicator.size() > 1 && state.config.folds_every_micro_batch();
  }

  std::shared_ptr<torch::nn::Module> model;
  Communicator& communicator;
  EngineOptions options;
  std::unique_ptr<Runtime> own_runtime;
  Runtime& runtime;
  detail::ModelClaim claim;
  detail::TrainingState state;
  std::unique_ptr<detail::TensorCollectives> collectives;
  detail::InFlight gradients;
  detail::GatherSchedule schedule;
  detail::StepContext context;
  detail::Attachment attachment;
  detail::MicroBatches micro_batches;
  detail::Saver saver;
};

Engine::Impl::Impl(const std::shared_ptr<torch::nn::Module>& the_model,
                   Communicator& the_communicator, const Config& config, EngineOptions the_options)
    : model(the_model),
      communicator(the_communicator),
      options(with_storage(std::move(the_options))),
      own_runtime(options.runtime ? nullptr : make_host_runtime()),
      runtime(own_runtime ? *own_runtime : *options.runtime),
      claim(*model),
      state(take_over(model, communicator, config, options, runtime.device())),
      collectives(detail::make_tensor_collectives(communicator)),
      gradients(runtime, overlapped(config, config.zero.reduce_bucket_size)),
      schedule(gather_limits(config)),
      context{.schedule = &schedule, .runtime = &runtime},
      attachment(model, state.model, context, {runtime, *collectives, gradients},
                 attachment_options(state)),
      micro_batches(state, context, schedule, communicator),
      saver(state, communicator, options) {}

/// Ends a step that is not finite without an update.
void Engine::Impl::leave_out(const std::vector<double>& losses) {
  const std::string where = detail::describe_non_finite(state.model, losses, communicator);
  if (state.config.non_finite == NonFinite::Error) {
    raise(
        ErrorCode::NotFinite,
        "step " + std::to_string(state.step + 1) + " was not applied: " + where,
        "continue from a checkpoint before the losses rose, with a lower learning rate, other data "
        "or gradient clipping; \"non_finite\": \"skip\" in the configuration leaves such steps "
        "out");
  }
  ++state.skipped_steps;
}

StepStats Engine::Impl::finish_step(const std::vector<double>& losses) {
  gradients.drain();
  if (depends_on_order())
    detail::require_equal_order(communicator, state.model, context.used_units);
  StepStats stats;
  stats.loss = mean(losses);
  stats.gradient_norm = detail::gradient_norm(state.model, communicator);
  stats.learning_rate =
      learning_rate(state.config.schedule, state.last_iteration, state.groups[0].hyper.lr);
  stats.skipped = !std::isfinite(stats.loss) || !std::isfinite(stats.gradient_norm);
  if (stats.skipped) {
    leave_out(losses);
  } else {
    detail::update_units(state, runtime, stats.gradient_norm);
    ++state.step;
    ++state.last_iteration;
  }
  stats.step = state.step;
  state.samples += static_cast<std::uint64_t>(state.batch.train);
  return stats;
}

Engine::Engine(const std::shared_ptr<torch::nn::Module>& model, Communicator& communicator,
               const Config& config, EngineOptions options)
    : impl_(std::make_unique<Impl>(model, communicator, config, std::move(options))) {}

Engine::~Engine() = default;

StepStats Engine::train_batch(const LossFunction& loss) {
  Impl& self = *impl_;
  const std::string number = std::to_string(self.state.step + 1);
  const detail::OperationScope operation("training step", number);
  self.model->train();
  self.context.used_units.clear();
  for (const auto& unit : self.state.model.units) unit.flat->begin_step();
  return self.finish_step(
      self.micro_batches.run(loss, Pass::Train, self.state.batch.global_micro_batches));
}

double Engine::evaluate(const LossFunction& loss, std::int64_t micro_batches) {
  Impl& self = *impl_;
  if (micro_batches < 1) raise(ErrorCode::InvalidArgument, "evaluate: no micro-batches");
  const at::NoGradGuard no_grad;
  const EvaluationScope evaluation(*self.model);
  return mean(self.micro_batches.run(loss, Pass::Evaluate, micro_batches));
}

void Engine::claim_save_folder(const Path& folder) { impl_->saver.claim(folder); }

SaveHandle Engine::save_checkpoint(const SaveRequest& request) {
  return impl_->saver.save(request);
}

void Engine::prepare_asynchronous_saves() { impl_->saver.prepare(); }

LoadReport Engine::load_checkpoint(const Path& folder, const std::optional<std::string>& tag) {
  impl_->saver.finish();
  LoadReport report = detail::load(impl_->state, impl_->communicator, impl_->options, folder, tag);
  detail::publish_units(impl_->state);
  return report;
}

std::int64_t Engine::step() const { return impl_->state.step; }
std::int64_t Engine::skipped_steps() const { return impl_->state.skipped_steps; }
std::uint64_t Engine::samples_seen() const { return impl_->state.samples; }
std::uint64_t Engine::shuffle_seed() const { return impl_->state.shuffle_seed; }
const BatchPlan& Engine::batch() const { return impl_->state.batch; }
const Config& Engine::config() const { return impl_->state.config; }

double Engine::next_learning_rate() const {
  const auto& state = impl_->state;
  return learning_rate(state.config.schedule, state.last_iteration, state.groups[0].hyper.lr);
}

std::uint64_t Engine::parameter_count() const {
  std::uint64_t count = 0;
  for (const auto& each : impl_->state.model.parameters)
    count += static_cast<std::uint64_t>(each.tensor.numel());
  return count;
}

std::uint64_t Engine::bytes_to_stage() const { return impl_->saver.bytes_to_stage(); }

MemoryReport Engine::memory() const {
  MemoryReport report;
  report.staging = static_cast<std::int64_t>(impl_->saver.staging_bytes());
  report.reducing_peak = impl_->gradients.peak_bytes();
  report.parameters = impl_->state.model.meter->current();
  report.parameters_peak = impl_->state.model.meter->peak();
  for (const auto& unit : impl_->state.model.units) {
    report.master += unit.flat->master_bytes();
    report.optimizer += unit.flat->state_bytes();
    report.gradients += unit.flat->gradient_bytes();
  }
  return report;
}

void Engine::reset_memory_peak() {
  impl_->state.model.meter->reset_peak();
  impl_->gradients.reset_peak();
}

GatheredScope::GatheredScope(Engine& engine) : engine_(engine) {
  for (const auto& unit : engine_.impl_->state.model.units) unit.flat->start_gather();
  for (const auto& unit : engine_.impl_->state.model.units) unit.flat->finish_gather();
}

GatheredScope::~GatheredScope() {
  for (const auto& unit : engine_.impl_->state.model.units) unit.flat->release();
}

}  // namespace unishard::trainer
