#pragma once
// Which tensor of one checkpoint is which of another. Pure.
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

/// `states` restricts the comparison; empty takes all. See diff() for formats without states.
Pairing pair_tensors(const converters::Source& a, const converters::Source& b,
                     const std::vector<std::string>& states);

}  // namespace unishard::tools
