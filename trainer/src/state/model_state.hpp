#pragma once
// A model in the engine's form: every parameter once, in model order, with the unit that holds it.
#include "unishard/format/catalog.hpp"

#include "state/step_context.hpp"

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace unishard::trainer::detail {

struct ParameterRecord {
  std::string fqn;
  at::Tensor tensor;  ///< not allocated at stage 3 outside gather()
  bool is_frozen = false;
  FlatUnit* unit = nullptr;  ///< null: frozen and an ordinary tensor on every rank
  std::size_t slot = 0;      ///< in the unit, among its trained or its frozen parameters
  std::size_t group = 0;     ///< index in TrainingState::groups
};

struct UnitRecord {
  std::string name;                           ///< "" is the root: parameters outside any Sharded<M>
  std::vector<std::string> fqns;              ///< of the trained parameters, by slot
  std::vector<std::size_t> parameters = {};   ///< theirs in ModelState::parameters
  std::vector<std::string> frozen_fqns = {};  ///< at every stage; at stage 3 by slot
  FlatUnit* flat = nullptr;
};

struct ModelState {
  std::unique_ptr<FlatUnit> root;  ///< the other units belong to their modules
  std::vector<UnitRecord> units;   ///< the root first; units without parameters are left out
  std::vector<UnitBase*> modules;  ///< every Sharded<M>, in model order
  std::vector<ParameterRecord> parameters;
  std::vector<NamedTensor> buffers;
  std::vector<Alias> aliases;
  std::shared_ptr<MemoryMeter> meter;
};

/// Shards the units that no ConstructionScope has sharded. `left_root` is the root unit that an
/// earlier engine left, or null.
/// Throws: InvalidArgument as Engine's constructor does.
ModelState take_over(torch::nn::Module& model, const Placement& placement,
                     std::unique_ptr<FlatUnit> left_root);

}  // namespace unishard::trainer::detail
