#pragma once
// A training state as the object {"model", "optimizer": {"state", "param_groups"}, "unishard"} of a
// torch.save file: the first two as torch.distributed's get_state_dict() names them, the third
// {"catalog": text} as embedded_catalog.hpp writes it.
#include "unishard/format/catalog.hpp"

#include <string>
#include <utility>
#include <vector>

namespace unishard::converters::torch {

struct TrainingLayout {
  using Member = std::pair<std::string, std::size_t>;                  ///< name, catalog tensor
  std::vector<Member> model;                                           ///< fqn, aliases too
  std::vector<std::pair<std::string, std::vector<Member>>> optimizer;  ///< fqn -> state -> tensor
  Json param_groups;  ///< a list; `params` are fqns
  Json rest;          ///< of "unishard"
};
TrainingLayout plan_training_layout(const Catalog& catalog);

/// The text under "unishard" of an object's JSON; nullptr when it is no such file.
const std::string* training_text(const Json& object);

}  // namespace unishard::converters::torch
