#pragma once
// A state of an optimizer that is no tensor itself, as the file of a torch optimizer has it, taken
// apart into what a catalog can hold (core/nested_states.hpp).
// Thread safety: a pure function.
#include "unishard/format/json.hpp"

#include <string>
#include <utility>
#include <vector>

namespace unishard::converters::torch {

struct StateParts {
  struct Lost {
    std::string state;
    std::string why;
    Json value;
  };
  std::vector<std::pair<std::string, std::string>> tensors;  ///< state, {"$tensor": name}
  std::vector<std::pair<std::string, Json>> values;          ///< state, without tensors
  std::vector<Lost> lost;  ///< what has tensors and cannot be written as data
};

/// Takes the state `name` apart: a dict has its members as states, up to four levels; of every
/// other container the tensors are states, and the tree of them is a value.
StateParts parts_of_state(const std::string& name, const Json& value);

}  // namespace unishard::converters::torch
