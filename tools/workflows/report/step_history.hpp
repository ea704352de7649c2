#pragma once
// Norms of groups of layers in several checkpoints, from statistics alone.
#include "unishard/format/catalog.hpp"

#include "workflows/report/layer_groups.hpp"

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace unishard::tools {

/// A group of layers in one checkpoint, all tensors of one state together.
struct HistoryPoint {
  double norm = 0;            ///< L2 norm of the finite elements
  std::uint64_t bad = 0;      ///< NaN and infinite elements
  std::uint64_t tensors = 0;  ///< tensors with statistics; the others do not count
  /// Lower bound of the L2 distance to the checkpoint before, from the change of each tensor's
  /// norm.
  double least_change = 0;
  std::uint64_t changed_tensors = 0;  ///< tensors that both checkpoints have statistics of
};

/// Not thread-safe.
class StepHistory {
 public:
  /// The tensors, states and groups of layers are those of `catalog`.
  explicit StepHistory(const Catalog& catalog);

  /// Adds a checkpoint; tensors that the first catalog does not have are left out.
  void add(const Catalog& catalog);

  const std::vector<std::string>& states() const { return states_; }
  const std::vector<std::string>& groups() const { return groups_.labels(); }
  /// Returns the points of the checkpoints `order` (indices in the order of add()): a row per
  /// group, with one point per state.
  std::vector<std::vector<std::vector<HistoryPoint>>> points(
      const std::vector<std::size_t>& order) const;

 private:
  struct Place {
    std::size_t group = 0, state = 0;
  };
  struct Measured {
    double norm = -1;  // negative: no statistics
    std::uint64_t bad = 0;
  };
  LayerGroups groups_;
  std::vector<std::string> states_;
  std::vector<Place> places_;                            // of each tensor
  std::unordered_map<std::string, std::size_t> number_;  // of a tensor, by label
  std::vector<std::vector<Measured>> added_;
};

}  // namespace unishard::tools
