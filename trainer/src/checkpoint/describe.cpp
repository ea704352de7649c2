#include "checkpoint/describe.hpp"

#include "unishard/format/version.hpp"

#include "checkpoint/in_parallel.hpp"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/stack.h>
#include <torch/version.h>

#include <algorithm>
#include <iterator>

namespace unishard::trainer::detail {
namespace {

Json describe_groups(const TrainingState& state) {
  Json groups = Json::array();
  for (const ParameterGroup& group : state.groups) {
    const Hyper& hyper = group.hyper;
    groups.push_back({{"name", group.name},
                      {"optimizer", state.optimizer_of(group).name()},
                      {"lr", learning_rate(state.config.schedule, state.last_iteration, hyper.lr)},
                      {"initial_lr", hyper.lr},
                      {"betas", {hyper.beta1, hyper.beta2}},
                      {"eps", hyper.eps},
                      {"weight_decay", hyper.weight_decay},
                      {"momentum", hyper.momentum}});
    if (state.optimizer->kind() == OptimizerKind::Sgd) {
      groups.back()["dampening"] = hyper.dampening;
      groups.back()["nesterov"] = hyper.nesterov;
    }
    if (state.optimizer->kind() == OptimizerKind::Adagrad)
      groups.back()["lr_decay"] = hyper.lr_decay;
    if (state.optimizer->kind() == OptimizerKind::Muon) {
      groups.back()["use_muon"] = hyper.use_muon;
      if (hyper.use_muon) groups.back()["ns_method"] = name_of(hyper.ns_method);
    }
  }
  return groups;
}

Json describe_position(const TrainingState& state) {
  Json position = {{"global_sample_index", state.samples}, {"shuffle_seed", state.shuffle_seed}};
  if (state.skipped_steps > 0) position["skipped_steps"] = state.skipped_steps;
  if (state.samples_per_epoch > 0) position["epoch"] = state.samples / state.samples_per_epoch;
  return position;
}

Json scheduler_params(const Json& config) {
  const auto section = config.find("scheduler");
  return section == config.end() ? Json::object() : section->value("params", Json::object());
}

/// Returns a '1' for each tensor that is 16-bit weights, of which this rank's part is the rounding
/// of the fp32 master, and a '0' for the others. Waits for the device once.
std::string rounded_weights(const LocalState& local, std::size_t tensors) {
  std::vector<std::size_t> weights;
  for (std::size_t t = 0; t < tensors; ++t)
    if (local.master_of(t)) weights.push_back(t);
  std::string marks(tensors, '0');
  if (weights.empty()) return marks;
  std::vector<at::Tensor> flags(weights.size());
  in_parallel(weights.size(),
              [&](std::size_t i) { flags[i] = local.differs_from_master(weights[i]); });
  const at::Tensor differs = at::stack(flags).cpu();
  for (std::size_t i = 0; i < weights.size(); ++i)
    if (!differs.data_ptr<bool>()[i]) marks[weights[i]] = '1';
  return marks;
}

void mark_derived(const LocalState& local, Communicator& communicator, Catalog& catalog) {
  std::string mine = rounded_weights(local, catalog.tensors.size());
  for (const std::string& theirs : gather_text(communicator, mine)) {
    for (std::size_t t = 0; t < mine.size(); ++t) {
      if (theirs[t] == '0') mine[t] = '0';
    }
  }
  for (std::size_t t = 0; t < mine.size(); ++t) catalog.tensors[t].derived = mine[t] == '1';
}

/// Returns "AVX2" from the line "CPU capability usage: AVX2". Not every version of LibTorch has the
/// query itself.
std::string cpu_capability() {
  const std::string text = at::show_config();
  const std::string label = "CPU capability usage: ";
  const std::size_t found = text.find(label);
  if (found == std::string::npos) return "unknown";
  const std::size_t begin = found + label.size();
  return text.substr(begin, text.find('\n', begin) - begin);
}

}  // namespace

Json producer() {
  static const std::string cpu = cpu_capability();
  return {{"library", "unishard " + std::string(kLibraryVersion)},
          {"torch", TORCH_VERSION},
          {"threads", at::get_num_threads()},
          {"cpu", cpu}};
}

std::vector<std::string> compare_producer(const Json& saved) {
  std::vector<std::string> notes;
  if (!saved.is_object()) return notes;
  const Json here = producer();
  for (const char* key : {"torch", "threads", "cpu"}) {
    if (saved.contains(key) && saved[key] != here[key]) {
      notes.push_back("saved with " + std::string(key) + " " + saved[key].dump() + ", here " +
                      here[key].dump() + ": the last bits of losses may differ");
    }
  }
  return notes;
}

Catalog describe_wanted(const TrainingState& state, const LocalState& local) {
  Catalog catalog;
  catalog.tensors = local.tensors();
  catalog.aliases = state.model.aliases;
  catalog.groups = describe_groups(state);
  return catalog;
}

Catalog describe_layout(const TrainingState& state, const LocalState& local,
                        std::uint32_t world_size) {
  Catalog catalog = describe_wanted(state, local);
  for (std::size_t t = 0; t < catalog.tensors.size(); ++t)
    catalog.tensors[t].derived = local.master_of(t).has_value();
  for (const UnitRecord& unit : state.model.units) {
    catalog.units.push_back({unit.name, unit.fqns});
    std::ranges::copy(unit.frozen_fqns, std::back_inserter(catalog.units.back().fqns));
  }
  catalog.world_size = world_size;
  catalog.stage = state.config.stage;
  return catalog;
}

Catalog describe(const TrainingState& state, const LocalState& local, Communicator& communicator) {
  Catalog catalog = describe_layout(state, local, communicator.size());
  mark_derived(local, communicator, catalog);
  catalog.step = state.step;
  catalog.scheduler = {{"type", name_of(state.config.schedule.kind)},
                       {"last_batch_iteration", state.last_iteration},
                       {"params", scheduler_params(state.config.source)}};
  if (state.scaler) catalog.loss_scaler = state.scaler->state();
  catalog.data_position = describe_position(state);
  catalog.rng = {{"scheme", "counter"}, {"seed", state.seed}};
  catalog.config = state.config.source;
  catalog.producer = producer();
  return catalog;
}

}  // namespace unishard::trainer::detail
