#pragma once
// Collects the parameter groups of a state dict's optimizers: nested, flattened by parameter, or as
// one object.
#include "unishard/format/catalog.hpp"
#include "unishard/format/json.hpp"

#include "formats/dcp/keys.hpp"

#include <map>
#include <string>
#include <vector>

namespace unishard::converters::dcp {

/// Not thread-safe.
class GroupCollector {
 public:
  explicit GroupCollector(std::size_t optimizers) : optimizers_(optimizers) {}

  void add(const GroupKey& key, const Json& value);
  /// Returns the groups of one optimizer, each with `params`.
  std::vector<Json> groups(std::size_t optimizer) const;

 private:
  struct Optimizer {
    std::vector<Json> whole;
    std::map<std::uint64_t, Json> nested;
    std::vector<std::pair<std::string, Json>> by_parameter;
    std::unordered_map<std::string, std::size_t> places;  // in by_parameter
  };
  std::vector<Optimizer> optimizers_;
};

/// Replaces settings of group `number` that hold tensors by null, and appends a line about each to
/// `notes`. (A setting that is a number in a tensor is a number by now; others are extra tensors.)
void drop_tensors(Json& group, std::size_t number, std::vector<std::string>& notes);

/// Returns `value` with {"$type": "tuple"} replaced by plain arrays, at any depth.
Json without_tuples(Json value);

/// Adds the names of the parameters ("param_names") to the groups of an optimizer's state_dict().
/// Returns false, and changes nothing, unless the catalog has groups like these, with a name of the
/// model for each parameter.
bool list_names(Json& optimizer, const Catalog& catalog);

}  // namespace unishard::converters::dcp
