#pragma once
// Collects what the objects of optimizers say of their states: those that are no tensors, and which
// tensors are whose.
#include "unishard/format/json.hpp"

#include "formats/dcp/client_tree.hpp"
#include "formats/dcp/keys.hpp"

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace unishard::converters::dcp {

/// State that counts the updates of a parameter.
inline constexpr std::string_view kStep = "step";

/// Not thread-safe.
class ScalarStates {
 public:
  /// Adds the value of one state, which holds no tensor.
  void add(OptimizerKey key, Json value);
  /// Adds what `states`, the "state" of an optimizer's state_dict(), holds. The tensors in a state
  /// that is a dict, a list or another container are states (nested_states.hpp). Appends to
  /// `losses` each state with tensors that is an object of a class, and each without a name.
  void add_all(std::size_t optimizer, const Json& states, Losses& losses);

  /// Adds a part of a state that has a key of its own: a value, or the state_mark() of a tensor.
  /// `path` is that of the key.
  void add_part(const OptimizerKey& key, const KeyPath& path, Json value);
  /// Makes trees of the parts of states that are lists, or have lists in them. Call it once, after
  /// all parts and values were added.
  void join_parts();

  /// Returns the state that the tensor `key` is, where an object names it: nullopt for a part of a
  /// state that is lost. Returns a null pointer for other tensors.
  const std::optional<OptimizerKey>* find_tensor(const std::string& key) const {
    const auto found = tensors_.find(key);
    return found == tensors_.end() ? nullptr : &found->second;
  }

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
  /// The parts of a state.
  struct Container {
    ClientTree tree;
    bool has_positions = false;
    std::set<std::string> parts;  ///< states
  };
  /// A state that several parameters lose for one reason.
  struct LostState {
    std::size_t loss = 0;  ///< index
    std::string first;     ///< parameter
    std::size_t count = 0;
  };
  void add_state(const OptimizerKey& key, const Json& value, Losses& losses);
  /// Pre: `losses` is the same in each call.
  void lose(const OptimizerKey& key, const Json& value, std::string_view why, Losses& losses);

  std::vector<Value> values_;
  std::map<std::tuple<std::size_t, std::string, std::string>, Container>
      containers_;  // by optimizer, parameter and state
  std::map<std::pair<std::string, std::string>, LostState> lost_;  // by state and reason
  std::unordered_map<std::string, std::optional<OptimizerKey>> tensors_;
};

}  // namespace unishard::converters::dcp
