#include "engine/prepare_state.hpp"

#include "unishard/format/error.hpp"
#include "unishard/trainer/construction.hpp"

#include "engine/rank_agreement.hpp"
#include "state/attachment.hpp"

namespace unishard::trainer::detail {
namespace {

std::vector<ParameterGroup> default_groups(const Config& config) {
  std::vector<ParameterGroup> groups{{"decay", config.hyper}, {"no_decay", config.hyper}};
  groups[1].hyper.weight_decay = 0;
  return groups;
}

/// Returns the group of a parameter.
/// Throws: InvalidArgument when there is no such group.
std::size_t group_of(const EngineOptions& options, const std::string& fqn,
                     const at::Tensor& parameter) {
  if (options.groups.empty()) return parameter.dim() >= 2 ? 0 : 1;
  const std::size_t group = options.group_of ? options.group_of(fqn, parameter) : 0;
  if (group < options.groups.size()) return group;
  raise(ErrorCode::InvalidArgument, "parameter " + quote(fqn) + " is in group " +
                                        std::to_string(group) + " of " +
                                        std::to_string(options.groups.size()));
}

TrainingState initial_state(const Config& config, const EngineOptions& options,
                            const Communicator& communicator) {
  TrainingState state;
  state.config = config;
  state.batch = plan_batch(config.batch, communicator.size());
  state.optimizer = make_optimizer(config.optimizer, config.hyper);
  state.groups = options.groups.empty() ? default_groups(config) : options.groups;
  if (config.compute == DType::Float16) state.scaler.emplace(config.fp16);
  state.seed = config.seed;
  state.shuffle_seed = options.shuffle_seed;
  state.samples_per_epoch = options.samples_per_epoch;
  return state;
}

}  // namespace

TrainingState prepare_state(const std::shared_ptr<torch::nn::Module>& model,
                            Communicator& communicator, const Config& config,
                            const EngineOptions& options, at::Device device) {
  TrainingState state = initial_state(config, options, communicator);
  require_equal_runs(communicator, describe_run(*model, config, options, device));
  state.nodes = find_nodes(communicator, config.node_local_checkpoints, options.node);
  state.model =
      take_over(*model, placement_for(config, communicator, device), take_left_root(model));
  for (auto& parameter : state.model.parameters)
    parameter.group = group_of(options, parameter.fqn, parameter.tensor);
  return state;
}

}  // namespace unishard::trainer::detail
