#pragma once
// What an update reads and writes, and the update of one element of it.
#include "device/host_device.hpp"
#include "optimizer/rules.hpp"

#include <cstddef>
#include <span>

namespace unishard::trainer::detail {

/// Arrays of `count` elements in the memory of one device. They do not overlap. States that the
/// rule does not have are null.
struct UpdateArrays {
  float* weights = nullptr;
  const float* gradients = nullptr;
  float* states[2] = {};
  std::size_t count = 0;

  /// Returns the elements [begin, begin + size). Pre: they exist.
  UpdateArrays part(std::size_t begin, std::size_t size) const {
    UpdateArrays result = *this;
    result.count = size;
    result.weights += begin;
    result.gradients += begin;
    for (float*& state : result.states)
      if (state != nullptr) state += begin;
    return result;
  }
};

/// Elements of the arrays that one rule updates.
struct RuleSegment {
  std::size_t begin = 0, count = 0;
  Rule rule;
};

/// An array that gets the rounding of new weights, bfloat16 or float16; null for none.
struct RoundedArray {
  void* values = nullptr;
  bool is_bfloat16 = false;
};

/// Pre: all spans have weights.size() elements; at most two states.
inline UpdateArrays arrays_of(std::span<float> weights, std::span<const float> gradients,
                              std::span<const std::span<float>> states) {
  UpdateArrays arrays{
      .weights = weights.data(), .gradients = gradients.data(), .count = weights.size()};
  for (std::size_t i = 0; i < states.size(); ++i) arrays.states[i] = states[i].data();
  return arrays;
}

/// Updates element `i` of `arrays`, and returns the new weight.
template <class R>
UNISHARD_HOST_DEVICE inline float update_element(const R& rule, const UpdateArrays& arrays,
                                                 std::size_t i) {
  float weight = arrays.weights[i];
  if constexpr (R::kStates == 0) {
    weight = rule(weight, arrays.gradients[i]);
  } else if constexpr (R::kStates == 1) {
    float state = arrays.states[0][i];
    weight = rule(weight, arrays.gradients[i], state);
    arrays.states[0][i] = state;
  } else {
    float first = arrays.states[0][i];
    float second = arrays.states[1][i];
    weight = rule(weight, arrays.gradients[i], first, second);
    arrays.states[0][i] = first;
    arrays.states[1][i] = second;
  }
  arrays.weights[i] = weight;
  return weight;
}

}  // namespace unishard::trainer::detail
