#pragma once
// Locates frozen parameters: whole in one model file, or split among the files of all ranks (stage
// 3).
#include "formats/deepspeed/parameter_table.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace unishard::converters::deepspeed {

/// Returns the frozen parameters that `model` holds whole. Those whose values in the module differ
/// become a note.
/// Throws: Corrupt when frozen_param_shapes or the module give one another shape.
FrozenTable whole_frozen(const ModelFile& model, Notes& notes);

/// Collects the parts of stage 3. Not thread-safe.
class FrozenSlices {
 public:
  /// `first` is the model file of rank 0.
  /// Lifetime: `first` must outlive this object.
  FrozenSlices(const ModelFile& first, std::uint64_t world_size);
  /// Adds the parts in `file`. A buffer that differs from rank 0's becomes a note.
  /// Throws: Corrupt when the file lists other frozen parameters or shapes than rank 0's, or holds
  /// parts of other parameters or of another size.
  void add_rank(const ModelFile& file, std::uint32_t rank, Notes& notes);
  /// Returns the parameters of which parts were added; the files may list others.
  FrozenTable take();

 private:
  void check_lists(const ModelFile& file) const;
  void check_size(const ModelFile& file, const NamedView& fragment, const Shape& shape) const;

  const ModelFile& first_;
  std::uint64_t world_size_;
  FrozenTable table_;
};

/// Returns for each flat group the parameter group that lists it.
/// Throws: Corrupt unless exactly one group lists it.
std::vector<std::int32_t> owners(const std::vector<std::vector<std::uint64_t>>& members,
                                 std::size_t flat_groups, const std::string& where);

}  // namespace unishard::converters::deepspeed
