#pragma once
// Decides which tensors of a state dict are parameters of models, and to which of them the states
// of each optimizer belong.
// Thread safety: pure functions.
#include "formats/dcp/state_dict.hpp"

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace unishard::converters::dcp {

/// What one optimizer tells of its parameters.
struct OptimizerClaims {
  std::string prefix;  ///< of its keys: "optim."
  std::vector<Json> groups;
  /// The names or numbers of the parameters, each with the shape of a state; nullopt where no state
  /// is a tensor.
  std::map<std::string, std::optional<Shape>> parameters;
};

struct Attribution {
  struct Parameter {
    std::size_t entry = 0;  ///< index in StateDict::tensors
    std::string fqn;
  };
  std::vector<Parameter> model;  ///< tensors of models, in the order of the file
  /// What precedes the names of the models' parameters in keys: "model.", or "" for the top level.
  std::vector<std::string> model_prefixes;
  std::vector<std::size_t> extras;  ///< tensors that are no model's
  std::vector<Alias> aliases;       ///< second keys of the model's tensors
  std::vector<const SecondKey*> other_second_keys;
  /// For each optimizer, the fqns of its parameters by the names or numbers that it uses.
  std::vector<std::unordered_map<std::string, std::string>> names;
  /// Optimizers whose parameters are not known for certain, by index: another optimizer has states
  /// of the same ones, and no model fits only one of them.
  std::vector<std::size_t> undecided;
  /// The model's files have the names of an adapter's file, which are not those of `model`.
  bool has_adapter_names = false;
  /// Tensors of the model with usual names of statistics are parameters: the counts tell it.
  bool trains_statistics = false;
  std::vector<std::string> remarks;
  std::vector<std::string> remarks_on_states;  ///< how their parameters were named

  /// Returns the fqn of what an optimizer calls `name`.
  std::string fqn_of(std::size_t optimizer, const std::string& name) const;
};

/// `tensors` are those of `state` that no optimizer has. One model has the parameters of all
/// optimizers, or each optimizer has a model of its own, whose name is then a part of the fqns
/// ("gen.0.weight").
Attribution attribute(const StateDict& state, const std::vector<std::size_t>& tensors,
                      const std::vector<OptimizerClaims>& optimizers);

}  // namespace unishard::converters::dcp
