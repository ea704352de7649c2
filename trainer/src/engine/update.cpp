#include "engine/update.hpp"

#include <deque>

namespace unishard::trainer::detail {
namespace {

/// Publishes units on the communication stream, at most `limit` elements at a time.
class Publication {
 public:
  explicit Publication(std::int64_t limit) : limit_(limit) {}

  void start(FlatUnit& unit, Changed changed) {
    unit.start_publish(changed);
    elements_ += elements_of(unit);
    started_.push_back(&unit);
    while (elements_ > limit_) finish_first();
  }
  void finish() {
    while (!started_.empty()) finish_first();
  }

 private:
  /// Frozen parameters are left out, because updates do not share them.
  static std::int64_t elements_of(const FlatUnit& unit) { return unit.layout().padded; }
  void finish_first() {
    started_.front()->finish_publish();
    elements_ -= elements_of(*started_.front());
    started_.pop_front();
  }

  std::int64_t limit_;
  std::int64_t elements_ = 0;
  std::deque<FlatUnit*> started_;
};

Publication publication_of(const Config& config) {
  return Publication(config.zero.overlap_comm ? config.zero.allgather_bucket_size : 0);
}

float clip_scale(double limit, double norm) {
  const bool clips = limit > 0 && norm > limit;
  return static_cast<float>(clips ? limit / (norm + 1e-6) : 1.0);
}

void update_parameter(TrainingState& state, Runtime& runtime, const ParameterRecord& parameter,
                      float scale) {
  const FlatUnit& unit = *parameter.unit;
  const auto count = static_cast<std::int64_t>(unit.layout().held(parameter.slot).size());
  if (count == 0) return;
  const auto offset = static_cast<std::int64_t>(unit.layout().held_offset(parameter.slot));
  Hyper hyper = state.groups[parameter.group].hyper;
  hyper.lr = learning_rate(state.config.schedule, state.last_iteration, hyper.lr);
  const auto betas =
      scheduled_betas(state.config.schedule, state.last_iteration, {hyper.beta1, hyper.beta2});
  hyper.beta1 = betas[0];
  hyper.beta2 = betas[1];
  UpdateTensors tensors{.weights = unit.master().narrow(0, offset, count),
                        .gradients = unit.gradients().narrow(0, offset, count),
                        .states = {}};
  for (const at::Tensor& each : unit.states())
    tensors.states.push_back(each.narrow(0, offset, count));
  runtime.update(*state.optimizer, hyper, state.step + 1, scale, tensors);
}

}  // namespace

void update_units(TrainingState& state, Runtime& runtime, double gradient_norm) {
  const float scale = clip_scale(state.config.gradient_clipping, gradient_norm) /
                      static_cast<float>(state.loss_scale());
  Publication publication = publication_of(state.config);
  for (const UnitRecord& unit : state.model.units) {
    if (unit.parameters.empty()) continue;
    runtime.run(Stream::Compute, "update " + unit.flat->name(), [&] {
      for (const std::size_t index : unit.parameters)
        update_parameter(state, runtime, state.model.parameters[index], scale);
    });
    publication.start(*unit.flat, Changed::Master);
  }
  publication.finish();
}

void publish_units(TrainingState& state) {
  Publication publication = publication_of(state.config);
  for (const UnitRecord& unit : state.model.units)
    publication.start(*unit.flat, Changed::Everything);
  publication.finish();
}

}  // namespace unishard::trainer::detail
