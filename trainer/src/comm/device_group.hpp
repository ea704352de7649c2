#pragma once
// A group of ranks that also talks from device to device.
#include "unishard/trainer/communicator.hpp"

#include "comm/tensor_collectives.hpp"

#include <memory>

namespace unishard::trainer::detail {

/// Its own functions work on host memory, as those of every communicator.
class DeviceGroup : public Communicator {
 public:
  /// Returns collectives on tensors of this rank's device. Collective.
  /// Lifetime: this group must outlive the result.
  virtual std::unique_ptr<TensorCollectives> device_collectives(Sum sum) = 0;
};

}  // namespace unishard::trainer::detail
