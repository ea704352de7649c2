#pragma once
// From the keys of a state dict to a catalog: what is the model, what the optimizer, what neither.
// MAPPING.md says what a catalog means.
#include "unishard/format/catalog.hpp"

#include "formats/dcp/state_dict.hpp"

#include <string>
#include <vector>

namespace unishard::converters::dcp {

struct Arrangement {
  Catalog catalog;
  std::vector<std::size_t> entries;  ///< per catalog tensor: its StateDict::tensors entry
  std::vector<std::string> notes;    ///< those of the state dict, and what was guessed or left out
};

/// Reads step counters, and tensors that may be one and the same under two names.
Arrangement arrange(const StateDict& state, const std::string& where);

}  // namespace unishard::converters::dcp
