#pragma once
// Which units of a model are offloaded, where the configuration says that only a part of them is.
#include "unishard/trainer/construction.hpp"

#include <cstdint>

namespace unishard::trainer::detail {

/// Asked for the units of a model in the order of their construction, which all ranks share. Not
/// thread-safe.
class OffloadedParts {
 public:
  /// Returns where the optimizer's arrays of the next unit live, which are `elements` long here: of
  /// all elements so far, the offloaded share comes as near to offload_optimizer.ratio as it can.
  Residence of_optimizer(const Placement& placement, std::int64_t elements) {
    const OffloadOptimizer& offload = placement.offload_optimizer;
    if (offload.residence == Residence::Device) return Residence::Device;
    optimizer_all_ += elements;
    const double wanted = offload.ratio * static_cast<double>(optimizer_all_);
    const double half = static_cast<double>(elements) / 2;
    if (static_cast<double>(optimizer_offloaded_) + half >= wanted) return Residence::Device;
    optimizer_offloaded_ += elements;
    return offload.residence;
  }
  /// Returns where the next parameters live, of which this rank has `elements`:
  /// offload_param.max_in_cpu bounds how many that would be in files are in the host's memory.
  Residence of_parameters(const Placement& placement, std::int64_t elements) {
    const OffloadParam& offload = placement.offload_param;
    if (offload.residence != Residence::File) return offload.residence;
    if (parameters_in_memory_ + elements > offload.max_in_cpu) return Residence::File;
    parameters_in_memory_ += elements;
    return Residence::Host;
  }

 private:
  std::int64_t optimizer_all_ = 0, optimizer_offloaded_ = 0;
  std::int64_t parameters_in_memory_ = 0;
};

}  // namespace unishard::trainer::detail
