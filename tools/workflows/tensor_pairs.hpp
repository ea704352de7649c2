#pragma once
// Pairs the tensors of two checkpoints.
// Thread safety: pure functions.
#include "unishard/converters/source.hpp"

#include <string>
#include <vector>

namespace unishard::tools {

struct TensorPair {
  std::size_t a = 0;
  std::size_t b = 0;
};

struct Pairing {
  std::vector<TensorPair> pairs;
  std::vector<std::size_t> only_a, only_b;
  std::vector<std::string> notes;  ///< what was left out and why
};

/// Pairs the tensors of `states`; an empty list takes all. For formats without states see diff().
/// A name that one side stores and the other has as the second name of a tied parameter is paired
/// with the tensor of that parameter, and converters::without_replica() makes names alike. Model
/// states (fp32, weights, buffer) of a name are paired when each side has another one. Throws:
/// InvalidArgument for a state that neither source has, and when `states` select nothing.
Pairing pair_tensors(const converters::Source& a, const converters::Source& b,
                     const std::vector<std::string>& states);

}  // namespace unishard::tools
