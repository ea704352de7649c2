#include "core/training_files.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard::converters {
namespace {

constexpr std::string_view kOptimizer = "the optimizer's state";
constexpr std::string_view kSchedule = "the learning rate schedule";

/// Returns what a file of this name holds; empty when it is no state of a training run.
std::string_view content_of(std::string_view name) {
  if (name == "optimizer.pt" || name == "optimizer.bin" || name.starts_with("optimizer_"))
    return kOptimizer;
  if (name == "scheduler.pt" || name == "scheduler.bin") return kSchedule;
  if (name == "scaler.pt") return "the loss scaler";
  if (name == "trainer_state.json") return "the Trainer's step and log";
  const bool is_random = (name.starts_with("rng_state") && name.ends_with(".pth")) ||
                         (name.starts_with("random_states_") && name.ends_with(".pkl"));
  return is_random ? "states of random generators" : "";
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
  if (is_found(kSchedule) && !is_found(kOptimizer))
    losses.push_back(
        {Role::SideFile, std::string(kOptimizer), "no file of it is beside the schedule's"});
  return losses;
}

}  // namespace unishard::converters
