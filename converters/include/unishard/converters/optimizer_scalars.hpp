#pragma once
// States of an optimizer that are no tensors: counters, factors, texts. A catalog holds them in its
// client state, by state and parameter: {"optimizer_scalars": {state: {fqn: value}}}.
#include "unishard/format/catalog.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace unishard::converters {

/// Key in the client state.
inline constexpr std::string_view kOptimizerScalars = "optimizer_scalars";

/// The values of a catalog by parameter.
/// Thread safety: an immutable value.
class OptimizerScalars {
 public:
  using Value = std::pair<std::string, const Json*>;  ///< state, value
  /// Lifetime: `catalog` must outlive this object.
  explicit OptimizerScalars(const Catalog& catalog);

  /// Returns the values of one parameter, without `step`.
  std::span<const Value> of(const std::string& fqn) const;
  /// Returns whether a parameter has a value or a step of its own.
  bool knows(const std::string& fqn) const { return values_.contains(fqn); }
  /// Returns the parameters that have a value or a step, in the catalog's order.
  const std::vector<std::string>& fqns() const { return fqns_; }
  /// Returns the step counter of a parameter: a whole number; a float, which torch keeps in a
  /// float32 tensor; null where it has none. Where the catalog lists none, that is Catalog::step,
  /// or null for SGD, whose momentum is all it has.
  Json step(const std::string& fqn) const;

 private:
  std::vector<std::string> fqns_;
  std::unordered_map<std::string, std::vector<Value>> values_;
  std::unordered_map<std::string_view, const Json*> step_of_;
  const Json* steps_ = nullptr;
  std::int64_t step_ = 0;
  bool counts_ = false;  ///< some parameter has a state that SGD does not have
};

/// Returns a client state in which the parameters have the names that `rename` returns; those for
/// which it returns "" are left out.
Json rename_optimizer_scalars(Json client_state,
                              const std::function<std::string(const std::string&)>& rename);

}  // namespace unishard::converters
