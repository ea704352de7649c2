#pragma once
// The frozen parameters of one unit at stage 3. Those of one type lie in a flat tensor, which has
// memory only while the unit is gathered; between uses each rank holds its shard of it. They have
// no gradients, no fp32 master and no optimizer states.
#include "comm/tensor_collectives.hpp"
#include "state/gathered_parameters.hpp"
#include "state/state_array.hpp"
#include "state/unit_layout.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace unishard::trainer::detail {

/// Not thread-safe.
class FrozenParameters {
 public:
  /// Takes over the values of the parameters, bit for bit, and frees their memory.
  /// Pre: the parameters are dense and on the placement's device.
  FrozenParameters(std::vector<at::Tensor> parameters, const Placement& placement,
                   const std::shared_ptr<MemoryMeter>& meter);

  bool empty() const { return parameters_.empty(); }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// Returns the number of elements that gather() fills, padding included.
  std::int64_t elements() const;
  std::int64_t shard_bytes() const;  ///< in memory
  std::int64_t bytes_in_files() const;
  /// Returns the CRC-64 of the values that parameter `index` was constructed with.
  std::uint64_t initial_crc64(std::size_t index) const { return initial_crc64_[index]; }

  bool has_memory() const;
  /// The new memory has no values. No effect if there is memory.
  void allocate();
  void free();
  /// Fills the flat tensors with the shards of all ranks. Work of the communication stream.
  /// Pre: has_memory().
  void gather(TensorCollectives& collectives) const;
  /// Takes over values that the parameters were given on all ranks.
  /// Pre: has_memory().
  void follow();

  /// Returns the elements of parameter `index` that this rank holds.
  ElementRange held(std::size_t index) const;
  /// Returns the shard that has these elements, and the position of the first of them in it.
  std::pair<StateArray, std::int64_t> place_of(std::size_t index) const;

 private:
  struct OfOneType {
    UnitLayout layout;
    GatheredParameters gathered;
    StateArray shard;
  };
  struct Place {
    std::size_t type = 0;  ///< index in types_
    std::size_t slot = 0;  ///< in its layout
  };

  void add_type(at::ScalarType type, const Placement& placement, const StatePlaces& places,
                const std::shared_ptr<MemoryMeter>& meter);

  std::vector<at::Tensor> parameters_;
  std::vector<std::uint64_t> initial_crc64_;
  std::vector<Place> places_;
  std::vector<OfOneType> types_;
};

}  // namespace unishard::trainer::detail
