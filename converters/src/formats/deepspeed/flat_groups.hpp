#pragma once
// Maps flat partitions to parameters. Stages 1 and 2 split the concatenation of a group's
// parameters among the ranks; stage 3 splits every parameter by itself and concatenates each rank's
// parts.
#include "formats/deepspeed/optimizer_file.hpp"
#include "formats/deepspeed/parameter_table.hpp"
#include "formats/deepspeed/swapped_states.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters::deepspeed {

/// The offset of a parameter in the flat vector (stages 1, 2) or in every rank's part of it (stage
/// 3).
struct FlatSpan {
  std::size_t parameter = 0;  ///< index in the ParameterTable
  std::uint64_t begin = 0;
};
struct FlatVector {
  std::vector<FlatSpan> spans;  ///< ascending
  std::uint64_t elements = 0;   ///< without padding at the end
};

/// The vectors of stages 1 and 2. Add ranks in ascending order.
class ConcatenatedGroups {
 public:
  /// `gaps` are the unused elements after each parameter; empty when there are none.
  /// Lifetime: `table` must outlive this object.
  ConcatenatedGroups(const ShapeGroups& shapes, const std::vector<std::vector<std::uint64_t>>& gaps,
                     ParameterTable& table);
  void add_rank(const OptimizerFile& file);
  /// Throws Corrupt when the partitions hold fewer or many more elements than the parameters, or a
  /// moment of Adam more than its partition.
  void check_ends(std::uint64_t world_size, const std::string& where) const;

 private:
  using Spans = std::vector<FlatSpan>::const_iterator;

  /// Returns the spans that reach into the next `visible` elements of a group, or touch them.
  std::pair<Spans, Spans> spans_in(std::size_t group, std::uint64_t visible) const;
  void add_state(std::size_t group, const FlatState& state, std::uint64_t visible,
                 const std::string& file);
  void remember_surplus(const FlatState& state, std::uint64_t visible, const std::string& file);
  bool has_whole_parameters(std::size_t group, const FlatState& state, std::uint64_t visible,
                            const std::string& file);
  void add_whole_parameters(std::size_t group, const FlatState& state, std::uint64_t visible);

  ParameterTable& table_;
  std::vector<FlatVector> vectors_;
  std::vector<std::uint64_t> filled_;  ///< elements of each group on the ranks added so far
  /// True where the momenta of a group have whole parameters; unknown until a rank tells.
  std::vector<std::optional<bool>> whole_momenta_;
  /// The moment that is longest beside its master.
  struct Surplus {
    std::uint64_t elements = 0;
    std::string what;
  };
  Surplus surplus_;
};

/// The sub-groups of stage 3. Add ranks in any order.
class SlicedGroups {
 public:
  /// `folder` is the tag's folder, which contains offloaded_tensors.
  /// Lifetime: `table` and `storage` must outlive this object.
  SlicedGroups(const ShapeGroups& shapes, std::uint64_t world_size, ParameterTable& table,
               Storage& storage, std::shared_ptr<FilePool> pool, Path folder);
  void add_rank(const OptimizerFile& file, std::uint32_t rank);
  /// Returns the states of all ranks so far that are in files of their own.
  const std::vector<SwappedState>& swapped_states() const { return swapped_; }

 private:
  Path swap_folder(std::uint32_t rank) const;
  std::vector<std::string> swap_ids(const OptimizerFile& file, std::uint32_t rank) const;
  /// Returns the state, and remembers it.
  TensorView swapped(const FlatState& state, const std::string& id, std::uint32_t rank,
                     std::size_t group);
  std::vector<ElementRange> parts_of(std::size_t group, std::uint32_t rank) const;
  void add_state(std::size_t group, const std::string& state, const TensorView& view,
                 std::uint32_t rank);

  ParameterTable& table_;
  std::vector<FlatVector> vectors_;
  std::uint64_t world_size_;
  Storage& storage_;
  std::shared_ptr<FilePool> pool_;
  Path folder_;
  std::vector<SwappedState> swapped_;
};

/// What the optimizer files of all ranks say of their partitions (stages 1 and 2).
struct StatedPartitions {
  struct OfRank {
    std::string file;
    std::vector<std::vector<FlatSlice>> slices;  ///< empty: the file does not tell
    /// Number of its partition of each group, nullopt for none; empty: the rank's number.
    std::vector<std::optional<std::uint64_t>> places;
  };
  std::vector<OfRank> ranks;
  std::vector<std::uint64_t> elements;  ///< of a partition of each group

  /// Add ranks in ascending order.
  void add_rank(const OptimizerFile& file, std::vector<std::optional<std::uint64_t>> places = {});
};
/// Checks that each file is in the place of its rank. `gaps` are as for ConcatenatedGroups. Files
/// of a `round_robin` run may tell the groups' own order instead; then only files that are in each
/// other's place are refused.
/// Throws: Corrupt, naming the files.
void check_partitions(const StatedPartitions& stated, const ShapeGroups& shapes,
                      const std::vector<std::vector<std::uint64_t>>& gaps, bool round_robin,
                      const std::string& where);

/// Returns the names of a round-robin group in the group's own order. param_shapes lists numbers 0,
/// W, 2W, ... first, then 1, W + 1, ...
std::vector<NamedShape> undo_round_robin(const std::vector<NamedShape>& reordered,
                                         std::uint64_t world_size);

/// Regroups the shapes of stage 3 so that they fit the flat groups' lengths, for files whose
/// param_shapes do not follow the sub-groups.
ShapeGroups regroup(const ShapeGroups& shapes, const std::vector<FlatGroup>& groups,
                    std::uint64_t world_size, const std::string& where);

}  // namespace unishard::converters::deepspeed
