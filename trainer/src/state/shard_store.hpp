#pragma once
// The fp32 master weights and the optimizer states of a unit: what this rank holds of them, and
// where it lives.
#include "state/gathered_parameters.hpp"
#include "state/offloaded_parts.hpp"
#include "state/state_array.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace unishard::trainer::detail {

/// Not thread-safe.
class ShardStore {
 public:
  /// Takes the master from `initial`, the parameters as they were before GatheredParameters rounded
  /// them. With fp32 below stage 3, the master is a part of the flat tensor, unless the optimizer
  /// is offloaded from a device.
  /// Throws: NoSpace, naming the folder of the files.
  ShardStore(const UnitLayout& layout, const std::vector<at::Tensor>& initial,
             const at::Tensor& flat, OffloadedParts& offloaded);

  /// Makes `count` optimizer states of zeros, or removes them.
  void make_states(std::size_t count);
  /// Takes over values that the parameters were given. Where a 16-bit parameter is still the
  /// rounding of its master, the master keeps its bits. `held` is this rank's part of the flat
  /// tensor.
  void follow(const at::Tensor& held);

  const StateArray& master() const { return master_; }
  const std::vector<StateArray>& states() const { return states_; }
  bool master_is_parameters() const { return aliased_; }
  /// Returns what ranks gather at stage 3 where that is not the master: this rank's parameters in
  /// their stored type. Undefined elsewhere.
  const StateArray& weights() const { return weights_; }
  /// Returns true when updates run on the host although the model computes on a device, or when
  /// they need files.
  bool is_offloaded() const { return places_.offloads_optimizer(); }
  const StatePlaces& places() const { return places_; }

  /// Calls visit(begin, count) for ranges that cover what this rank holds. Where anything is in a
  /// file, they are short enough to be in memory.
  template <class Visit>
  void visit_pieces(const Visit& visit) const {
    const std::int64_t all = master_.elements(), most = most_at_once(all);
    for (std::int64_t begin = 0; begin < all; begin += most)
      visit(begin, std::min(most, all - begin));
  }
  /// Returns how many of `all` elements may be in memory at a time; at least one.
  std::int64_t most_at_once(std::int64_t all) const {
    constexpr std::int64_t kInFiles = std::int64_t{1} << 20;
    return is_in_files() ? kInFiles : std::max<std::int64_t>(all, 1);
  }
  /// Returns true when an array of the unit is in a file.
  bool is_in_files() const;

 private:
  StatePlaces places_;
  StateArray master_;
  StateArray weights_;
  std::vector<StateArray> states_;
  at::ScalarType stored_;  ///< what the parameters are rounded to
  bool aliased_ = false;
};

}  // namespace unishard::trainer::detail
