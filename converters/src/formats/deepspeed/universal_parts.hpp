#pragma once
// What the model files beside a universal checkpoint tell of its whole parameters: the shapes of
// the parts that tensor-parallel ranks had, and the parts themselves where the module is there.
#include "formats/deepspeed/cut_rules.hpp"
#include "formats/deepspeed/parameter_table.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters::deepspeed {

/// The parts of each parameter on the tensor-parallel ranks of a run. Not thread-safe.
class UniversalParts {
 public:
  /// Sets the number of tensor-parallel ranks of each stage. Without it nothing is checked.
  void set_ranks(std::uint64_t tensor_ranks) { tensor_ranks_ = tensor_ranks; }
  /// Adds the model file of rank number `rank`, and the parameters that its param_shapes lists.
  void add(std::uint32_t rank, TorchFile file, const ShapeGroups& shapes);

  /// Checks the whole shape of a parameter against its parts. What the rules of the files do not
  /// describe is not checked.
  /// Throws: Corrupt, naming the parameter, with `where` before it.
  void check_shape(const std::string& fqn, const Shape& whole, const std::string& where);
  /// Returns the parameters whose parts in the modules are not what their masters round to. Looks
  /// at the first elements of each box. A parameter that is the mean of its parts tells nothing.
  std::vector<std::string> differing(const ParameterTable& parameters);

 private:
  /// What one rank has of a parameter.
  struct Part {
    Shape shape;
    std::optional<TensorView> view;  ///< nullopt: the module does not have it
  };
  using Parts = std::map<std::uint32_t, Part>;  ///< by rank

  /// Returns the parts on the ranks of the first stage that has the parameter; an empty list where
  /// one of them lacks it.
  std::vector<const Part*> parts_of(const std::string& fqn) const;
  std::optional<TensorCut> cut_of(const std::string& fqn, const std::vector<const Part*>& parts);
  bool differs(const Parameter& parameter);

  std::uint64_t tensor_ranks_ = 0;
  std::optional<TorchFile> first_;  ///< its pickle holds the rules
  std::optional<CutRules> rules_;   ///< nullopt: the files have none
  std::map<std::string, Parts> parameters_;
};

}  // namespace unishard::converters::deepspeed
