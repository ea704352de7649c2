#pragma once
// A training state as the object {"model", "optimizer": {"state", "param_groups"}, "unishard"} of a
// torch.save file. The first two have the names of torch.distributed's get_state_dict(); the third
// is {"catalog": text} as embedded_catalog.hpp writes it.
#include "unishard/format/catalog.hpp"

#include <string>
#include <utility>
#include <vector>

namespace unishard::converters::torch {

struct TrainingLayout {
  using Member = std::pair<std::string, std::size_t>;  ///< name, catalog tensor
  /// Tensors by fqn, aliases included.
  std::vector<Member> model;
  std::vector<std::pair<std::string, std::vector<Member>>> optimizer;  ///< fqn -> state -> tensor
  Json param_groups;  ///< a list; `params` are fqns
  Json rest;          ///< of "unishard"
};
TrainingLayout plan_training_layout(const Catalog& catalog);

/// Returns the text under "unishard" in an object's JSON; nullptr for a file of another kind.
const std::string* training_text(const Json& object);

}  // namespace unishard::converters::torch
