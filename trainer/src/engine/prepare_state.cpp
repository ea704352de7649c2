#include "engine/prepare_state.hpp"

#include "unishard/format/error.hpp"
#include "unishard/trainer/construction.hpp"

#include "config/section_readers.hpp"
#include "engine/rank_agreement.hpp"
#include "state/attachment.hpp"

#include <algorithm>
#include <array>

namespace unishard::trainer::detail {
namespace {

std::vector<ParameterGroup> default_groups(const Config& config, bool has_muon) {
  const Hyper& hyper = has_muon ? config.adam : config.hyper;
  std::vector<ParameterGroup> groups{{"decay", hyper}, {"no_decay", hyper}};
  groups[1].hyper.weight_decay = 0;
  if (!has_muon) return groups;
  groups.insert(groups.begin(), {"muon", config.hyper});
  groups[0].hyper.use_muon = true;
  return groups;
}

/// DeepSpeed's rule: Muon updates matrices that are neither embeddings nor heads by their names.
/// The embeddings of GPT-2, "wte" and "wpe", are matrices like others.
bool uses_muon(const std::string& fqn, const at::Tensor& parameter) {
  if (parameter.dim() < 2) return false;
  const std::string name = lower_case(fqn);
  return std::ranges::none_of(std::array{"embed", "lm_head"}, [&](const char* word) {
    return name.find(word) != std::string::npos;
  });
}

/// Returns the group of a parameter.
/// Throws: InvalidArgument when there is no such group.
std::size_t group_of(const TrainingState& state, const EngineOptions& options,
                     const std::string& fqn, const at::Tensor& parameter) {
  if (options.groups.empty()) {
    const std::size_t first = state.adam ? 1 : 0;
    if (state.adam && uses_muon(fqn, parameter)) return 0;
    return parameter.dim() >= 2 ? first : first + 1;
  }
  const std::size_t group = options.group_of ? options.group_of(fqn, parameter) : 0;
  if (group < options.groups.size()) return group;
  raise(ErrorCode::InvalidArgument, "parameter " + quote(fqn) + " is in group " +
                                        std::to_string(group) + " of " +
                                        std::to_string(options.groups.size()));
}

/// Throws: InvalidArgument when a group of Muon has a parameter that is no matrix.
void require_matrices(const TrainingState& state) {
  for (const ParameterRecord& parameter : state.model.parameters) {
    const ParameterGroup& group = state.groups[parameter.group];
    if (parameter.is_frozen || !group.hyper.use_muon || parameter.tensor.dim() >= 2) continue;
    raise(ErrorCode::InvalidArgument,
          "parameter " + quote(parameter.fqn) + " is in group " + quote(group.name) +
              " of Muon and is no matrix",
          "give parameters with fewer than two dimensions a group without use_muon");
  }
}

TrainingState initial_state(const Config& config, const EngineOptions& options,
                            const Communicator& communicator) {
  TrainingState state;
  state.config = config;
  state.batch = plan_batch(config.batch, communicator.size());
  state.optimizer = make_optimizer(config.optimizer, config.hyper);
  const bool has_muon = state.optimizer->kind() == OptimizerKind::Muon;
  if (has_muon) state.adam = make_optimizer("Adam", config.adam);
  state.groups = options.groups.empty() ? default_groups(config, has_muon) : options.groups;
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
    parameter.group = group_of(state, options, parameter.fqn, parameter.tensor);
  if (state.adam) require_matrices(state);
  return state;
}

}  // namespace unishard::trainer::detail
