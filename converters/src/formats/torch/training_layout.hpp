#pragma once
// A training state as the object of a torch.save file: the model, the optimizer {"state",
// "param_groups"} and the client state at the places of the file that was read, else as {"model",
// "optimizer", ...}, with the names of torch.distributed's get_state_dict(). "unishard" is beside
// them: {"catalog": text} as embedded_catalog.hpp writes it.
#include "unishard/format/catalog.hpp"

#include "containers/inline_tensors.hpp"

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace unishard::converters::torch {

/// Key of UniShard's own member.
inline constexpr std::string_view kOurKey = "unishard";

struct TrainingLayout {
  Json object;                                           ///< {"$tensor": name} represents a tensor
  std::unordered_map<std::string, std::size_t> tensors;  ///< name -> catalog tensor
  std::unordered_map<std::string, float> steps;          ///< name -> value of a float32 tensor
  std::map<std::string, InlineTensor> constants;         ///< small tensors of the client state
};
/// Appends a line to `notes` for everything that has no place of its own in the object.
TrainingLayout plan_training_layout(const Catalog& catalog, std::vector<std::string>& notes);

/// Returns the text under "unishard" in an object's JSON; nullptr for a file of another kind.
const std::string* training_text(const Json& object);

}  // namespace unishard::converters::torch
