#pragma once
// Where frozen parameters lie: whole in one model file, or cut over those of all ranks (stage 3).
#include "formats/deepspeed/parameter_table.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace unishard::converters::deepspeed {

FrozenTable whole_frozen(const ModelFile& model);

class FrozenSlices {
 public:
  /// `first`: the model file of rank 0. It must live as long.
  FrozenSlices(const ModelFile& first, std::uint64_t world_size);
  /// Adds what `file` holds of each; a buffer that is not that of rank 0 becomes a note.
  void add_rank(const ModelFile& file, std::uint32_t rank, Notes& notes);
  FrozenTable take() { return std::move(table_); }

 private:
  const ModelFile& first_;
  std::uint64_t world_size_;
  FrozenTable table_;
};

/// For each flat group the parameter group that lists it. Throws Corrupt unless it is exactly one.
std::vector<std::int32_t> owners(const std::vector<std::vector<std::uint64_t>>& members,
                                 std::size_t flat_groups, const std::string& where);

}  // namespace unishard::converters::deepspeed
