#include "checkpoint/other_settings.hpp"

#include "unishard/format/dtype.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <array>
#include <optional>

namespace unishard::trainer::detail {
namespace {

constexpr std::array kNumbers{"initial_lr", "betas",    "eps",      "weight_decay", "momentum",
                              "dampening",  "nesterov", "lr_decay", "ns_method"};

/// Returns what the group of a parameter says under `key`; null when it says nothing.
Json number_of(const Catalog& catalog, const TensorInfo& parameter, const char* key) {
  const auto group = static_cast<std::size_t>(parameter.group);
  if (parameter.group < 0 || !catalog.groups.is_array() || group >= catalog.groups.size())
    return nullptr;
  return catalog.groups[group].value(key, Json());
}

/// The checkpoint has other groups, such as the only one of DeepSpeed's users: its parameters are
/// compared one by one.
void note_other_groups(const Catalog& saved, const Catalog& here, std::vector<std::string>& notes) {
  for (const char* key : kNumbers) {
    std::size_t count = 0;
    std::string first;
    for (const TensorInfo& ours : here.tensors) {
      if (ours.state != state::kFp32) continue;
      const std::optional<std::size_t> theirs = saved.find(ours.fqn, ours.state);
      const Json was = theirs ? number_of(saved, saved.tensors[*theirs], key) : Json();
      const Json is = number_of(here, ours, key);
      if (was.is_null() || is.is_null() || was == is || count++ > 0) continue;
      first =
          fmt::format("{}, where {} was and {} is used", quote(ours.fqn), was.dump(), is.dump());
    }
    if (count == 0) continue;
    notes.push_back(fmt::format(
        "{} of {} parameters is the configuration's (first of {}): the checkpoint has other groups",
        key, count, first));
  }
}

/// The configuration's values replace the checkpoint's; each difference becomes a note.
void note_other_numbers(const Catalog& source, const Catalog& wanted,
                        std::vector<std::string>& notes) {
  const Json& saved = source.groups;
  const Json& here = wanted.groups;
  if (!saved.is_array()) return;
  if (saved.size() != here.size()) return note_other_groups(source, wanted, notes);
  for (std::size_t group = 0; group < here.size(); ++group) {
    for (const char* key : kNumbers) {
      const Json& theirs = saved[group];
      if (!theirs.is_object() || !theirs.contains(key) || !here[group].contains(key) ||
          theirs[key] == here[group][key])
        continue;
      notes.push_back("group " + std::to_string(group) + ": " + key + " was " + theirs[key].dump() +
                      ", the configuration's " + here[group][key].dump() + " is used");
    }
  }
}

/// Returns the configuration in `saved`, if it can be read.
std::optional<Config> saved_config(const Catalog& saved) {
  if (!saved.config.is_object() || saved.config.empty()) return std::nullopt;
  try {
    return parse_config(saved.config);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<BatchPlan> batch_of(const Config& config, std::uint32_t world_size) {
  if (world_size == 0) return std::nullopt;
  try {
    return plan_batch(config.batch, world_size);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string schedule_of(const Config& config) {
  const auto section = config.source.find("scheduler");
  return section == config.source.end() ? "constant rate" : section->dump();
}

void note_other_config(const TrainingState& state, const Config& was, std::uint32_t world_size,
                       std::vector<std::string>& notes) {
  const auto note = [&](std::string_view what, const auto& theirs, const auto& ours) {
    if (theirs == ours) return;
    notes.push_back(fmt::format("{} was {}, the configuration's {} is used", what, theirs, ours));
  };
  const Config& here = state.config;
  const auto name = [](NonFinite what) { return what == NonFinite::Skip ? "skip" : "error"; };
  note("non_finite", std::string_view(name(was.non_finite)),
       std::string_view(name(here.non_finite)));
  note("optimizer.params.bias_correction", was.hyper.bias_correction, here.hyper.bias_correction);
  if (state.optimizer->kind() == OptimizerKind::Lamb) {
    note("optimizer.params.max_coeff", was.hyper.max_coeff, here.hyper.max_coeff);
    note("optimizer.params.min_coeff", was.hyper.min_coeff, here.hyper.min_coeff);
  }
  note("precision", name_of(was.compute), name_of(here.compute));
  if (was.schedule != here.schedule) note("scheduler", schedule_of(was), schedule_of(here));
  note("canonical_order", was.canonical_order, here.canonical_order);
  note("gradient_clipping", was.gradient_clipping, here.gradient_clipping);
  if (const auto batch = batch_of(was, world_size)) {
    note("train_batch_size", batch->train, state.batch.train);
    note("train_micro_batch_size_per_gpu", batch->micro, state.batch.micro);
  }
}

}  // namespace

void note_other_settings(const TrainingState& state, const Catalog& saved, const Catalog& wanted,
                         std::vector<std::string>& notes) {
  note_other_numbers(saved, wanted, notes);
  if (const auto was = saved_config(saved)) note_other_config(state, *was, saved.world_size, notes);
}

}  // namespace unishard::trainer::detail
