#pragma once
// What a universal checkpoint holds beside whole states: the modules in the model files of the
// parallel ranks, whose tensors may be cut, and copies of a module's entries below zero/.
#include "formats/deepspeed/parameter_table.hpp"

#include <map>
#include <set>
#include <string>
#include <vector>

namespace unishard::converters::deepspeed {

/// The modules in the model files of tensor- and pipeline-parallel ranks. Not thread-safe.
class RankModules {
 public:
  /// Adds one rank's file. `buffers` are the names that it lists.
  void add(const TorchFile& file, const std::vector<std::string>& buffers);

  /// Returns the buffers whose elements are the same in all files that list them, by name.
  std::vector<NamedView> whole_buffers() const;
  /// Returns the names of the others: their values differ, or a file that lists them lacks them.
  std::vector<std::string> other_buffers() const;
  /// Returns whether `whole`, which zero/ has of an entry that was not trained, is rather a part of
  /// it: the ranks' tensors have its shape, and differ.
  bool is_part(const std::string& name, const Shape& whole) const;
  /// Returns the names of each tensor that is no buffer, and of each frozen parameter.
  const std::vector<std::vector<std::string>>& names() const { return names_; }

 private:
  struct Entry {
    TensorView first;
    bool differs = false;
  };
  std::map<std::string, Entry> entries_;
  std::set<std::string> buffers_, missing_buffers_;
  std::vector<std::vector<std::string>> names_;
};

/// Returns whether the payload of zero/<name>/fp32.pt has the values of `entry`, which
/// ds_to_universal casts to float32. Looks at the first elements. Returns true for a payload that
/// cannot be compared.
bool is_copy_of(const TensorView& payload, const TensorView& entry);

}  // namespace unishard::converters::deepspeed
