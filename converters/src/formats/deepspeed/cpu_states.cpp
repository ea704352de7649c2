#include "formats/deepspeed/cpu_states.hpp"

#include "unishard/format/catalog.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

namespace unishard::converters::deepspeed {
namespace {

bool is_setting(const Json& settings, std::string_view key) {
  return settings.is_object() && settings.contains(std::string(key));
}

/// Returns true for the settings of a group of DeepSpeed's Adagrad of the CPU (lr, eps,
/// weight_decay, amsgrad), or of UniShard's trainer. Optimizers of the user may have an exp_avg_sq
/// alone, too: Adafactor has it in vectors.
bool is_cpu_adagrad(const Json& settings) {
  if (!settings.is_object()) return false;
  const bool is_deepspeeds =
      settings.contains("amsgrad") && !settings.contains("betas") && settings.contains("eps");
  return is_deepspeeds || settings.value("optimizer", Json()) == "Adagrad";
}

/// Returns true when the first elements of each piece are zeros.
bool begins_with_zeros(const StatePieces& state) {
  return std::ranges::all_of(state.pieces, [](const ViewPiece& piece) {
    const std::uint64_t count = std::min<std::uint64_t>(piece.range.size(), 64);
    std::vector<std::byte> bytes(count * size_of(piece.view.dtype));
    piece.view.read({piece.first, piece.first + count}, bytes, torch::Reading::Sample);
    return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
  });
}

/// Returns which groups are those of Lion of the CPU: the exp_avg_sq of all its parameters begin
/// with zeros. Other optimizers without eps use it.
std::vector<bool> find_cpu_lion(const ParameterTable& parameters, const Json& groups) {
  std::vector<bool> found;
  for (const Json& settings : groups) found.push_back(is_lion(settings));
  for (const Parameter& parameter : parameters.all()) {
    const auto group = static_cast<std::size_t>(parameter.group);
    if (parameter.group < 0 || group >= found.size() || !found[group]) continue;
    const auto second = std::ranges::find(parameter.states, state::kExpAvgSq, &StatePieces::state);
    if (second != parameter.states.end()) found[group] = begins_with_zeros(*second);
  }
  return found;
}

/// Returns which groups are those of Adagrad of the CPU: by their settings, and because exp_avg_sq
/// is the only state of all their parameters.
std::vector<bool> find_cpu_adagrad(const ParameterTable& parameters, const Json& groups) {
  std::vector<bool> found;
  for (const Json& settings : groups) found.push_back(is_cpu_adagrad(settings));
  const auto is_second = [](const StatePieces& piece) {
    return piece.state == state::kFp32 || piece.state == state::kExpAvgSq;
  };
  for (const Parameter& parameter : parameters.all()) {
    const auto group = static_cast<std::size_t>(parameter.group);
    if (parameter.group < 0 || group >= found.size() || !found[group]) continue;
    found[group] = std::ranges::all_of(parameter.states, is_second);
  }
  return found;
}

}  // namespace

bool is_lion(const Json& settings) {
  return is_setting(settings, "betas") && !is_setting(settings, "eps");
}

void name_cpu_states(ParameterTable& parameters, const Json& groups, Notes& notes) {
  const std::vector<bool> is_adagrad = find_cpu_adagrad(parameters, groups);
  const std::vector<bool> is_lion = find_cpu_lion(parameters, groups);
  std::size_t unused = 0;
  for (Parameter& parameter : parameters.all()) {
    const auto group = static_cast<std::size_t>(parameter.group);
    if (parameter.group < 0 || group >= groups.size()) continue;
    const auto find = [&](std::string_view name) {
      return std::ranges::find(parameter.states, name, &StatePieces::state);
    };
    const auto second = find(state::kExpAvgSq);
    if (second == parameter.states.end()) continue;
    const bool has_first = find(state::kExpAvg) != parameter.states.end();
    if (has_first && is_lion[group]) {
      parameter.states.erase(second);
      ++unused;
    } else if (is_adagrad[group]) {
      second->state = kAdagradSum;
    }
  }
  if (unused == 0) return;
  notes.lose({Role::State, fmt::format("exp_avg_sq of {} parameters", unused),
              "DeepSpeed's Lion of the CPU has it and never uses it"});
}

std::string cpu_state_name(const Json& settings, const std::vector<std::string>& states,
                           const std::string& name) {
  const bool is_adagrad = states.size() == 1 && name == kAdagradSum && is_cpu_adagrad(settings);
  return is_adagrad ? std::string(state::kExpAvgSq) : name;
}

}  // namespace unishard::converters::deepspeed
