#pragma once
// What a universal checkpoint holds twice: buffers, which the model file of each rank has, and
// copies of the module's entries below zero/.
#include "formats/deepspeed/parameter_table.hpp"

#include <map>
#include <set>
#include <string>
#include <vector>

namespace unishard::converters::deepspeed {

/// Returns the buffers in the module of one rank's model file.
std::vector<NamedView> read_buffers(const TorchFile& file);

/// The buffers that the model files of tensor- and pipeline-parallel ranks have in common. Not
/// thread-safe.
class SharedBuffers {
 public:
  /// Adds the buffers of one rank, whose model file lists `names`.
  void add_rank(const std::vector<std::string>& names, std::vector<NamedView> held);
  /// Returns the buffers whose elements are the same in all files that list them, by name.
  std::vector<NamedView> whole() const;
  /// Returns the names of the others: their values differ, or a file that lists them lacks them.
  std::vector<std::string> others() const;

 private:
  std::map<std::string, TensorView> first_;
  std::set<std::string> others_;
};

/// Returns whether the payload of zero/<name>/fp32.pt has the values of `entry`, which
/// ds_to_universal casts to float32. Looks at the first elements. Returns true for a payload that
/// cannot be compared.
bool is_copy_of(const TensorView& payload, const TensorView& entry);

}  // namespace unishard::converters::deepspeed
