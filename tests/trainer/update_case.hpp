#pragma once
// Arrays of an update that hold ordinary and odd values, and the optimizers that are tried on them.
#include "unishard/trainer/optimizer.hpp"

#include "optimizer/update_arrays.hpp"

#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <vector>

namespace unishard::trainer::test {

struct UpdateCase {
  std::string title;
  const char* optimizer;
  Hyper hyper;
  friend void PrintTo(const UpdateCase& each, std::ostream* out) { *out << each.title; }
};

inline std::vector<UpdateCase> update_cases() {
  const Hyper plain{.lr = 0.01, .beta2 = 0.95, .weight_decay = 0.1};
  const auto with = [&](auto change) {
    Hyper hyper = plain;
    change(hyper);
    return hyper;
  };
  return {
      {"AdamW", "AdamW", plain},
      {"Adam", "Adam", with([](Hyper& h) { h.decoupled_decay = false; })},
      {"AdamWithoutEpsilon", "Adam", with([](Hyper& h) { h.eps = 0, h.weight_decay = 0; })},
      {"Sgd", "SGD", plain},
      {"Momentum", "SGD", with([](Hyper& h) { h.momentum = 0.9, h.dampening = 0.3; })},
      {"Nesterov", "SGD", with([](Hyper& h) { h.momentum = 0.9, h.nesterov = true; })},
      {"Lion", "Lion", plain},
      {"AdamWithoutCorrection", "Adam", with([](Hyper& h) { h.bias_correction = false; })},
      {"Lamb", "Lamb", plain},
      {"Muon", "Muon", with([](Hyper& h) { h.momentum = 0.95; })},
      {"MuonOfLittleMomentum", "Muon", with([](Hyper& h) { h.momentum = 0.3; })},
      {"Adagrad", "Adagrad", with([](Hyper& h) { h.lr_decay = 0.2; })},
  };
}

/// The weights, gradients and two states of an update.
struct UpdateValues {
  std::array<std::vector<float>, 4> arrays;

  std::size_t size() const { return arrays[0].size(); }
  std::vector<std::span<float>> states(const Optimizer& optimizer) {
    std::vector<std::span<float>> spans;
    for (std::size_t i = 0; i < optimizer.state_names().size(); ++i)
      spans.emplace_back(arrays[2 + i]);
    return spans;
  }
  detail::UpdateArrays all(const Optimizer& optimizer) {
    return detail::arrays_of(arrays[0], arrays[1], states(optimizer));
  }
};

/// Every combination of the odd values, then `count` ordinary ones.
inline UpdateValues update_values(std::size_t count) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  constexpr std::array kOdd{0.0F,       -0.0F,
                            1.0F,       -1.5F,
                            1e-45F,     -1e-40F,
                            FLT_MIN,    1e-20F,
                            -3e19F,     FLT_MAX,
                            -FLT_MAX,   kInfinite,
                            -kInfinite, std::numeric_limits<float>::quiet_NaN()};
  UpdateValues values;
  std::size_t combinations = 1;
  for (std::size_t i = 0; i < values.arrays.size(); ++i) combinations *= kOdd.size();
  for (std::size_t i = 0; i < combinations; ++i) {
    std::size_t rest = i;
    for (auto& array : values.arrays) {
      array.push_back(kOdd[rest % kOdd.size()]);
      rest /= kOdd.size();
    }
  }
  std::mt19937 generator(5);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < count; ++i)
    for (auto& array : values.arrays)
      array.push_back(std::ldexp(normal(generator), static_cast<int>(i % 41) - 20));
  return values;
}

/// Returns the number of elements that differ. A NaN equals every NaN.
inline std::size_t differences(const UpdateValues& a, const UpdateValues& b) {
  std::size_t count = 0;
  for (std::size_t k = 0; k < a.arrays.size(); ++k) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      const float x = a.arrays[k][i], y = b.arrays[k][i];
      if (std::isnan(x) && std::isnan(y)) continue;
      if (std::bit_cast<std::uint32_t>(x) != std::bit_cast<std::uint32_t>(y)) ++count;
    }
  }
  return count;
}

}  // namespace unishard::trainer::test
