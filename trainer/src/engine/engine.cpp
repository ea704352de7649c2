#include "unishard/trainer/engine.hpp"

#include "unishard/format/error.hpp"
#include "unishard/trainer/seeds.hpp"

#include "checkpoint/load.hpp"
#include "checkpoint/saver.hpp"
#include "comm/operation_scope.hpp"
#include "engine/gradient_norm.hpp"
#include "engine/non_finite.hpp"
#include "engine/rank_agreement.hpp"
#include "state/attachment.hpp"
#include "state/generator_scope.hpp"
#include "state/training_state.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <cmath>
#include <numeric>

namespace unishard::trainer {

using detail::FlatUnit;

namespace {

/// Stands for the default generator where units have their numbers.
constexpr std::uint64_t kDefaultGenerator = ~std::uint64_t{0};

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

}  // namespace

struct Engine::Impl {
  Impl(const std::shared_ptr<torch::nn::Module>& the_model, Communicator& the_communicator,
       const Config& config, EngineOptions the_options);

  enum class Mode : std::uint8_t { Train, Evaluate };
  std::vector<double> run_micro_batches(const LossFunction& loss, Mode mode, std::int64_t count);
  double run_micro_batch(const LossFunction& loss, Mode mode, const MicroBatch& batch,
                         double scale);
  std::vector<double> ordered_losses(const std::vector<double>& mine, std::int64_t count);
  /// True when units are gathered or reduced one by one within a micro-batch.
  bool depends_on_order() const {
    return communicator.size() > 1 && state.config.folds_every_micro_batch();
  }
  void leave_out(const std::vector<double>& losses);
  void apply(double gradient_norm);
  void apply_to(FlatUnit& unit, const detail::ParameterRecord& parameter, const Hyper& hyper,
                float scale);
  void publish();

  std::shared_ptr<torch::nn::Module> model;
  Communicator& communicator;
  EngineOptions options;
  detail::ModelClaim claim;
  detail::TrainingState state;
  detail::StepContext context;
  std::vector<FlatUnit*> units;
  detail::Attachment attachment;
  detail::Saver saver;
};

namespace {

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
                                const EngineOptions& options) {
  detail::TrainingState state = initial_state(config, options, communicator);
  detail::require_equal_runs(communicator, detail::describe_run(*model, config, options));
  state.model =
      detail::take_over(*model, placement_for(config, communicator), detail::take_left_root(model));
  return state;
}

detail::Reduction reduction_of(const Config& config) {
  return config.folds_every_micro_batch() ? detail::Reduction::FoldEach
                                          : detail::Reduction::FoldOnce;
}

EngineOptions with_storage(EngineOptions options) {
  if (!options.storage) options.storage = &posix_storage();
  return options;
}

}  // namespace

Engine::Impl::Impl(const std::shared_ptr<torch::nn::Module>& the_model,
                   Communicator& the_communicator, const Config& config, EngineOptions the_options)
    : model(the_model),
      communicator(the_communicator),
      options(with_storage(std::move(the_options))),
      claim(*model),
      state(take_over(model, communicator, config, options)),
      attachment(model, state.model, context, communicator, reduction_of(config),
                 state.optimizer->state_names().size()),
      saver(state, communicator, options) {
  for (const auto& unit : state.model.units) units.push_back(unit.flat);
}

/// Runs this rank's part of micro-batches 0 to count - 1: rank r takes r, r + W, ... Every rank
/// runs the same number, because all take part in the collectives; surplus ones repeat micro-batch
/// 0 and do not count. Returns the losses.
std::vector<double> Engine::Impl::run_micro_batches(const LossFunction& loss, Mode mode,
                                                    std::int64_t count) {
  const std::int64_t ranks = communicator.size();
  context.seed = state.seed;
  context.step = state.step;
  std::vector<double> losses;
  for (std::int64_t first = 0; first < count; first += ranks) {
    const std::int64_t id = first + communicator.rank();
    const bool counts = id < count;
    context.micro_batch = counts ? id : 0;
    for (FlatUnit* unit : units) unit->set_counts(counts);
    const std::uint64_t base = mode == Mode::Train ? state.samples : 0;
    const MicroBatch batch{
        .step = state.step,
        .id = context.micro_batch,
        .first_sample = base + static_cast<std::uint64_t>(context.micro_batch * state.batch.micro),
        .samples = state.batch.micro};
    try {
      losses.push_back(run_micro_batch(loss, mode, batch, 1.0 / static_cast<double>(count)));
    } catch (...) {
      for (FlatUnit* unit : units) unit->abandon();
      throw;
    }
  }
  return losses;
}

double Engine::Impl::run_micro_batch(const LossFunction& loss, Mode mode, const MicroBatch& batch,
                                     double scale) {
  const detail::GeneratorScope generator_scope(
      dropout_seed(context.seed, context.step, context.micro_batch, kDefaultGenerator));
  const detail::DropoutScope dropout_scope(context, 0);
  if (state.model.root) state.model.root->gather();
  const at::Tensor value = loss(batch);
  if (mode == Mode::Train) (value * scale).backward();
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    if (mode == Mode::Train) (*unit)->finish_backward();
    (*unit)->release();
  }
  return value.item<double>();
}

/// Returns the losses of micro-batches 0 to count - 1 of all ranks, in this order.
std::vector<double> Engine::Impl::ordered_losses(const std::vector<double>& mine,
                                                 std::int64_t count) {
  const std::vector<double> all = gather_doubles(communicator, mine);
  const auto ranks = static_cast<std::int64_t>(communicator.size());
  const auto rounds = static_cast<std::int64_t>(mine.size());
  std::vector<double> losses;
  for (std::int64_t id = 0; id < count; ++id)
    losses.push_back(all[static_cast<std::size_t>(id % ranks * rounds + id / ranks)]);
  return losses;
}

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

void Engine::Impl::apply(double gradient_norm) {
  const double limit = state.config.gradient_clipping;
  const bool clips = limit > 0 && gradient_norm > limit;
  const auto scale = static_cast<float>(clips ? limit / (gradient_norm + 1e-6) : 1.0);
  for (const auto& parameter : state.model.parameters) {
    if (!parameter.unit) continue;
    Hyper hyper = state.groups[state.group_of(parameter)].hyper;
    hyper.lr = learning_rate(state.config.schedule, state.last_iteration, hyper.lr);
    apply_to(*parameter.unit, parameter, hyper, scale);
  }
}

void Engine::Impl::apply_to(FlatUnit& unit, const detail::ParameterRecord& parameter,
                            const Hyper& hyper, float scale) {
  const std::size_t count = unit.held(parameter.slot).size();
  if (count == 0) return;
  const std::size_t offset = unit.held_offset(parameter.slot);
  std::vector<std::span<float>> states;
  for (std::size_t i = 0; i < state.optimizer->state_names().size(); ++i) {
    states.push_back(unit.state(i).subspan(offset, count));
  }
  state.optimizer->update(hyper, state.step + 1, scale, unit.master().subspan(offset, count),
                          unit.gradients().subspan(offset, count), states);
}

void Engine::Impl::publish() {
  for (FlatUnit* unit : units) unit->publish();
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
  for (FlatUnit* unit : self.units) unit->begin_step();
  const std::int64_t count = self.state.batch.global_micro_batches;
  const std::vector<double> mine = self.run_micro_batches(loss, Impl::Mode::Train, count);
  for (FlatUnit* unit : self.units) unit->finish_step();
  const std::vector<double> losses = self.ordered_losses(mine, count);
  if (self.depends_on_order())
    detail::require_equal_order(self.communicator, self.state.model, self.context.used_units);
  StepStats stats;
  stats.loss = mean(losses);
  stats.gradient_norm = detail::gradient_norm(self.units, self.communicator);
  stats.learning_rate = next_learning_rate();
  stats.skipped = !std::isfinite(stats.loss) || !std::isfinite(stats.gradient_norm);
  if (stats.skipped) {
    self.leave_out(losses);
  } else {
    self.apply(stats.gradient_norm);
    self.publish();
    ++self.state.step;
    ++self.state.last_iteration;
  }
  stats.step = self.state.step;
  self.state.samples += static_cast<std::uint64_t>(self.state.batch.train);
  return stats;
}

double Engine::evaluate(const LossFunction& loss, std::int64_t micro_batches) {
  Impl& self = *impl_;
  if (micro_batches < 1) raise(ErrorCode::InvalidArgument, "evaluate: no micro-batches");
  const at::NoGradGuard no_grad;
  const EvaluationScope evaluation(*self.model);
  const std::vector<double> losses =
      self.run_micro_batches(loss, Impl::Mode::Evaluate, micro_batches);
  return mean(self.ordered_losses(losses, micro_batches));
}

void Engine::claim_save_folder(const Path& folder) { impl_->saver.claim(folder); }

SaveHandle Engine::save_checkpoint(const SaveRequest& request) {
  return impl_->saver.save(request);
}

void Engine::prepare_asynchronous_saves() { impl_->saver.prepare(); }

LoadReport Engine::load_checkpoint(const Path& folder, const std::optional<std::string>& tag) {
  impl_->saver.finish();
  LoadReport report = detail::load(impl_->state, impl_->communicator, impl_->options, folder, tag);
  impl_->publish();
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
  report.parameters = impl_->state.model.meter->current();
  report.parameters_peak = impl_->state.model.meter->peak();
  for (const FlatUnit* unit : impl_->units) {
    report.master += unit->master_bytes();
    report.optimizer += unit->state_bytes();
    report.gradients += unit->gradient_bytes();
  }
  return report;
}

void Engine::reset_memory_peak() { impl_->state.model.meter->reset_peak(); }

GatheredScope::GatheredScope(Engine& engine) : engine_(engine) {
  for (FlatUnit* unit : engine_.impl_->units) unit->gather();
}

GatheredScope::~GatheredScope() {
  for (FlatUnit* unit : engine_.impl_->units) unit->release();
}

}  // namespace unishard::trainer
