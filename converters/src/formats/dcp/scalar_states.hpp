#pragma once
// Collects the states of optimizers that are no tensors.
#include "unishard/format/json.hpp"

#include "formats/dcp/keys.hpp"

#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::dcp {

/// State that counts the updates of a parameter.
inline constexpr std::string_view kStep = "step";

/// Not thread-safe.
class ScalarStates {
 public:
  /// Adds the value of one state, which holds no tensor.
  void add(OptimizerKey key, Json value);
  /// Adds what `states`, the "state" of an optimizer's state_dict(), holds beside tensors. Appends
  /// a line to `notes` for each value that is left out.
  void add_all(std::size_t optimizer, const Json& states, std::vector<std::string>& notes);

  /// Returns the names or numbers by which an optimizer knows the parameters of these states.
  std::set<std::string> names(std::size_t optimizer) const;
  /// Returns the step counters.
  std::vector<double> steps() const;
  bool empty() const { return values_.empty(); }

  using Name = std::function<std::string(const OptimizerKey&)>;
  /// A step counter that is a tensor.
  struct TensorStep {
    std::string fqn;
    double value = 0;
  };
  /// Returns {state: {fqn: value}}. Steps are listed unless all of `stateful`, the parameters with
  /// states, have equal ones in tensors. If none has one, they are an empty list, which is left out
  /// where the kind of the optimizer tells as much (`is_known`).
  Json json(const Name& name_of, const std::vector<TensorStep>& tensor_steps,
            const std::vector<std::string>& stateful, bool is_known) const;

 private:
  struct Value {
    OptimizerKey key;
    Json value;
  };
  std::vector<Value> values_;
};

}  // namespace unishard::converters::dcp
