#include "unishard/trainer/engine.hpp"

#include "unishard/format/error.hpp"
#include "unishard/trainer/memory_plan.hpp"

#include "checkpoint/load.hpp"
#include "comm/operation_scope.hpp"
#include "engine/count_memory.hpp"
#include "engine/device_memory.hpp"
#include "engine/engine_impl.hpp"
#include "engine/gradient_norm.hpp"
#include "engine/lamb_update.hpp"
#include "engine/muon_update.hpp"
#include "engine/non_finite.hpp"
#include "engine/prepare_state.hpp"
#include "engine/rank_agreement.hpp"
#include "engine/step_numbers.hpp"
#include "engine/update.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <cmath>
#include <numeric>
#include <utility>

namespace unishard::trainer {

using Pass = detail::MicroBatches::Pass;

namespace {

/// Puts a model in evaluation mode, and each of its modules back in its former mode when destroyed.
class EvaluationScope {
 public:
  explicit EvaluationScope(torch::nn::Module& model) {
    for (const auto& module : model.modules()) former_.emplace_back(module, module->is_training());
    model.eval();
  }
  ~EvaluationScope() {
    // Parents precede their children, whose modes they change too.
    for (const auto& [module, is_training] : former_) module->train(is_training);
  }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> former_;
};

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

EngineOptions with_storage(EngineOptions options) {
  if (!options.storage) options.storage = &posix_storage();
  return options;
}

std::int64_t overlapped(const Config& config, std::int64_t limit) {
  return config.zero.overlap_comm ? limit : 0;
}

detail::GatherLimits gather_limits(const Config& config) {
  return {.prefetch = overlapped(config, config.zero.prefetch_bucket_size),
          .live = config.zero.max_live_parameters,
          .reuse = config.zero.max_reuse_distance};
}

/// One micro-batch has the same sums either way, and is sent in the type of its gradients.
detail::Reduction reduction_of(const detail::TrainingState& state) {
  const bool folds_each = state.config.folds_every_micro_batch() || state.batch.accumulation == 1;
  return folds_each ? detail::Reduction::FoldEach : detail::Reduction::FoldOnce;
}

detail::AttachmentOptions attachment_options(const detail::TrainingState& state) {
  return {.reduction = reduction_of(state),
          .states = state.states(),
          .persistent = state.config.zero.param_persistence_threshold};
}

}  // namespace

Engine::Impl::Impl(const std::shared_ptr<torch::nn::Module>& the_model,
                   Communicator& the_communicator, const Config& config, EngineOptions the_options)
    : model(the_model),
      communicator(the_communicator),
      options(with_storage(std::move(the_options))),
      own_runtime(options.runtime ? nullptr : make_host_runtime()),
      runtime(own_runtime ? *own_runtime : *options.runtime),
      claim(*model),
      state(detail::prepare_state(model, communicator, config, options, runtime.device())),
      collectives(
          detail::make_tensor_collectives(communicator, runtime.device(), state.config.sum)),
      gradients(runtime, overlapped(config, config.zero.reduce_bucket_size)),
      schedule(gather_limits(config)),
      context{.schedule = &schedule,
              .runtime = &runtime,
              .casts_inputs = config.compute == DType::Float16 && config.fp16.auto_cast},
      attachment(model, state.model, context,
                 {runtime, *collectives, gradients, order,
                  [this](const detail::FlatUnit& unit, detail::Sums what) {
                    if (speculation) speculation->hear(unit, what);
                  }},
                 attachment_options(state)),
      micro_batches(state, context, schedule, communicator),
      saver(state, communicator, options, runtime) {
  speculate();
}

/// Updates units during the backward pass, unless that is switched off. Where the configuration
/// does not ask for it, it is left out if the disk has no room for two of the state, and where that
/// is in memory.
void Engine::Impl::speculate() {
  const OffloadOptimizer& offload = state.config.offload_optimizer;
  // The host's memory is the device's where the model computes on the host.
  const bool is_here = offload.residence == Residence::Host && runtime.device().is_cpu();
  if (is_here || !wants_updates_ahead(state.config)) return;
  communicator.barrier();  // no rank takes room that another one needs for its state
  try {
    speculation.emplace(state, runtime);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::NoSpace || offload.super_offload) throw;
  }
}

/// Ends a step that is not finite without an update. An exception comes before any change.
void Engine::Impl::leave_out(const std::vector<double>& losses) {
  if (state.scaler) {
    state.scaler->update(/*overflow=*/true);
  } else {
    require_skipping(losses);
  }
  ++state.skipped_steps;
}

/// Throws: NotFinite, naming the cause, unless the configuration leaves such steps out.
void Engine::Impl::require_skipping(const std::vector<double>& losses) const {
  if (state.config.non_finite == NonFinite::Skip) return;
  raise(ErrorCode::NotFinite,
        "step " + std::to_string(state.step + 1) +
            " was not applied: " + detail::describe_non_finite(state.model, losses, communicator),
        "continue from a checkpoint before the losses rose, with a lower learning rate, other data "
        "or gradient clipping; \"non_finite\": \"skip\" in the configuration leaves such steps "
        "out");
}

void Engine::Impl::begin_step() {
  micro_batches.begin(Pass::Train, state.batch.global_micro_batches);
  model->train();
  order.clear();
  if (speculation) speculation->begin_step();
  for (const auto& unit : state.model.units) unit.flat->begin_step();
}

void Engine::Impl::require_no_step(const char* what) const {
  if (!micro_batches.has_begun()) return;
  raise(ErrorCode::InvalidArgument, std::string(what) + ": a step has begun and has not ended",
        "a checkpoint has no gradients: call it after the step's last micro-batch");
}

StepStats Engine::Impl::finish_step() {
  const std::string number = std::to_string(state.step + 1);
  const detail::OperationScope operation("training step", number);
  const at::Tensor own_losses = micro_batches.end();
  gradients.drain();
  // The device works on them while the ranks compare their orders.
  const at::Tensor squares = detail::gradient_squares(state.model);
  detail::require_equal_order(communicator, order);
  const auto [losses, norm, flags] =
      detail::gather_numbers(state.model, micro_batches, own_losses, squares,
                             options.flags ? options.flags() : 0, *collectives, communicator);
  StepStats stats;
  stats.flags = flags;
  stats.loss = mean(losses);
  stats.loss_scale = state.loss_scale();
  stats.gradient_norm = norm / stats.loss_scale;
  stats.learning_rate =
      learning_rate(state.config.schedule, state.last_iteration, state.groups[0].hyper.lr);
  stats.skipped = !std::isfinite(stats.loss) || !std::isfinite(stats.gradient_norm);
  if (stats.skipped) {
    if (speculation) speculation->drop();
    leave_out(losses);
  } else {
    saver.before_change();
    if (state.optimizer->kind() == OptimizerKind::Lamb)
      detail::update_with_lamb(state, runtime, communicator, stats.gradient_norm);
    else if (state.optimizer->kind() == OptimizerKind::Muon)
      stats.gradient_norm = detail::update_with_muon(state, runtime, *collectives, communicator);
    else
      stats.units_ahead = detail::update_units(state, runtime, stats.gradient_norm,
                                               speculation ? &*speculation : nullptr);
    if (state.scaler) state.scaler->update(/*overflow=*/false);
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
  self.begin_step();
  while (self.micro_batches.has_next()) {
    const at::Tensor value = self.micro_batches.forward(loss);
    self.micro_batches.backward(value);
  }
  return self.finish_step();
}

at::Tensor Engine::forward(const LossFunction& loss) {
  if (!impl_->micro_batches.has_begun()) impl_->begin_step();
  return impl_->micro_batches.forward(loss);
}

void Engine::backward(const at::Tensor& loss) { impl_->micro_batches.backward(loss); }

std::optional<StepStats> Engine::step() {
  impl_->micro_batches.require_done("step");
  if (impl_->micro_batches.has_next()) return std::nullopt;
  return impl_->finish_step();
}

bool Engine::is_gradient_accumulation_boundary() const {
  return impl_->micro_batches.has_begun() && impl_->micro_batches.is_last();
}

double Engine::evaluate(const LossFunction& loss, std::int64_t micro_batches) {
  Impl& self = *impl_;
  if (micro_batches < 1) raise(ErrorCode::InvalidArgument, "evaluate: no micro-batches");
  const at::NoGradGuard no_grad;
  const EvaluationScope evaluation(*self.model);
  self.micro_batches.begin(Pass::Evaluate, micro_batches);
  self.order.clear();
  while (self.micro_batches.has_next()) self.micro_batches.forward(loss);
  const std::vector<double> own_losses = detail::host_values(self.micro_batches.end());
  self.collectives->require_healthy();
  detail::require_equal_order(self.communicator, self.order);
  return mean(self.micro_batches.gather(own_losses));
}

void Engine::claim_save_folder(const Path& folder) { impl_->saver.claim(folder); }

SaveHandle Engine::save_checkpoint(const SaveRequest& request) {
  impl_->require_no_step("save_checkpoint");
  return impl_->saver.save(request);
}

void Engine::prepare_asynchronous_saves() { impl_->saver.prepare(); }

LoadReport Engine::load_checkpoint(const Path& folder, const std::optional<std::string>& tag) {
  impl_->require_no_step("load_checkpoint");
  impl_->saver.finish();
  impl_->saver.before_change();
  for (const auto& unit : impl_->state.model.units) unit.flat->finish_gather();
  LoadReport report = detail::load(impl_->state, impl_->communicator, impl_->options, folder, tag);
  detail::publish_units(impl_->state, impl_->runtime, detail::Changed::Everything);
  return report;
}

std::int64_t Engine::global_steps() const { return impl_->state.step; }
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
  MemoryReport report = detail::count_memory(impl_->state.model);
  if (impl_->speculation) {
    report.files += impl_->speculation->bytes_in_files();
    report.updates_ahead = impl_->speculation->bytes_in_memory();
  }
  report.reducing_peak = impl_->gradients.peak_bytes();
  report.staging = static_cast<std::int64_t>(impl_->saver.staging_bytes());
  report.device = detail::device_memory(impl_->runtime.device());
  return report;
}

bool Engine::widens_fp16() const {
  return impl_->state.config.compute == DType::Float16 &&
         detail::kernel_type(at::kHalf, impl_->runtime.device()) == at::kFloat;
}

void Engine::reset_memory_peak() {
  impl_->state.model.meter->reset_peak();
  impl_->gradients.reset_peak();
  detail::reset_device_memory_peaks(impl_->runtime.device());
}

}  // namespace unishard::trainer
