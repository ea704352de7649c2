#include "core/training_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace unishard::converters {
namespace {

constexpr std::string_view kOptimizer = "the optimizer's state";
constexpr std::string_view kSchedule = "the learning rate schedule";

/// Returns what a file of this name holds; empty when it is no state of a training run.
std::string_view content_of(std::string_view name) {
  constexpr std::array<std::string_view, 5> kSuffixes = {".pt", ".bin", ".pth", ".ckpt",
                                                         ".safetensors"};
  const bool is_file_of_tensors = std::ranges::any_of(
      kSuffixes, [&](std::string_view suffix) { return name.ends_with(suffix); });
  const bool is_optimizer = name.starts_with("optim") || name.starts_with("pytorch_optim");
  if (name.starts_with("optimizer_") || (is_optimizer && is_file_of_tensors)) return kOptimizer;
  if (name.starts_with("scheduler") && is_file_of_tensors) return kSchedule;
  if (name == "scaler.pt") return "the loss scaler";
  if (name == "trainer_state.json") return "the Trainer's step and log";
  const bool is_random = (name.starts_with("rng_state") && name.ends_with(".pth")) ||
                         (name.starts_with("random_states_") && name.ends_with(".pkl"));
  return is_random ? "states of random generators" : "";
}

/// Returns how the program that wrote the file of a schedule calls that of the optimizer.
std::string optimizer_beside(std::string_view schedule) {
  return schedule.ends_with(".pt") ? "optimizer.pt" : "optimizer.bin";
}

}  // namespace

Losses unread_training_files(Storage& storage, const Path& folder) {
  Losses losses;
  for (const Entry& entry : storage.list(folder)) {
    if (const std::string_view content = content_of(entry.name); !content.empty())
      losses.push_back({Role::SideFile, entry.name, std::string(content)});
  }
  std::ranges::sort(losses, {}, &Loss::name);
  const auto is_found = [&](std::string_view content) {
    return std::ranges::any_of(losses, [&](const Loss& loss) { return loss.why == content; });
  };
  const auto is_missing = [&](std::string_view name) {
    return std::ranges::find(losses, name, &Loss::name) == losses.end();
  };
  const auto schedule = std::ranges::find(losses, kSchedule, &Loss::why);
  if (schedule != losses.end() && !is_found(kOptimizer))
    losses.push_back({.role = Role::SideFile,
                      .name = optimizer_beside(schedule->name),
                      .why = fmt::format("{}: no file of it is beside the schedule's, {}",
                                         kOptimizer, schedule->name),
                      .is_broken = true});
  const auto further = std::ranges::find_if(losses, [](const Loss& loss) {
    return loss.name.starts_with("optimizer_") && loss.name.ends_with(".bin");
  });
  const bool is_first_missing = further != losses.end() && is_missing("optimizer.bin");
  if (is_first_missing)
    losses.push_back({.role = Role::Optimizer,
                      .name = "optimizer.bin",
                      .why = fmt::format("missing, and {} is there", further->name),
                      .is_broken = true});
  return losses;
}

}  // namespace unishard::converters
