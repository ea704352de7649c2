#pragma once
// Layout of DeepSpeed's flat vectors at every stage, as its partition code defines it.
// Thread safety: values and pure functions.
#include "unishard/format/tensor_info.hpp"

#include "formats/deepspeed/writer_model.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::converters::deepspeed_sink {

/// Elements `range` of a parameter, at element `at` of a vector.
struct Slot {
  std::size_t parameter = 0;
  ElementRange range;
  std::uint64_t at = 0;
};

/// One rank's part of one "parameter" of the optimizer, for which the optimizer keeps states.
struct FlatVector {
  std::size_t group = 0;
  Shape shape;
  std::vector<Slot> slots;  ///< in order of `at`; the remaining elements are padding
  bool is_whole = false;    ///< exactly one parameter, in its own shape
  /// The slots and the length of the states, where these are whole parameters though the rank holds
  /// a part of the first or the last one: Muon's momentum.
  std::vector<Slot> state_slots = {};
  std::optional<std::uint64_t> state_length = {};
};

/// A group of stages 1 and 2: one vector, split into equal pieces.
struct PartitionedGroup {
  std::vector<std::size_t> order;      ///< parameters in the order of the vector
  std::vector<std::uint64_t> offsets;  ///< offset of each in the vector
  std::vector<std::uint64_t> gaps;     ///< unused elements after each (parameter_alignment)
  std::uint64_t used = 0;              ///< end of the last parameter
  std::uint64_t piece = 0;             ///< elements of one rank
  bool cuts_momenta = false;           ///< see PartitionRules

  /// Returns the elements of the rank's piece after `used`.
  std::uint64_t padding(std::uint32_t rank) const;
};

struct PartitionRules {
  std::uint32_t world_size = 1;
  bool round_robin = false;
  bool aligned = false;       ///< zero_optimization.parameter_alignment
  bool cuts_momenta = false;  ///< Muon: a rank has no more of them than of the masters
  std::uint64_t sub_group_size = 0;
};
PartitionRules partition_rules(const Catalog& catalog);

/// `parameters` are those of a group, or of its part for one expert rank; `rules` has the number of
/// ranks that share them.
PartitionedGroup partition(const SinkModel& model, const std::vector<std::size_t>& parameters,
                           const PartitionRules& rules);
FlatVector piece_of(const SinkModel& model, std::size_t group, const PartitionedGroup& partitioned,
                    std::uint32_t rank);

/// A sub-group of stage 3: parameters that are split into `world_size` pieces one by one.
struct SubGroup {
  std::size_t group = 0;
  std::vector<std::size_t> parameters;
};
std::vector<SubGroup> sub_groups(const SinkModel& model, const PartitionRules& rules);
FlatVector piece_of(const SinkModel& model, const SubGroup& sub_group, std::uint32_t rank,
                    std::uint32_t world_size);
/// Return a rank's elements of a tensor that is split by itself, and the length of a piece, which
/// is the same for every rank.
ElementRange own_range(std::uint64_t elements, std::uint32_t rank, std::uint32_t world_size);
std::uint64_t own_length(std::uint64_t elements, std::uint32_t world_size);

/// Stage 0: one vector per group (fused optimizers), or one per parameter. `groups` has the
/// parameters of each group.
using GroupMembers = std::vector<std::vector<std::size_t>>;
std::vector<FlatVector> fused_groups(const SinkModel& model, const GroupMembers& groups);
std::vector<FlatVector> single_parameters(const SinkModel& model, const GroupMembers& groups);

}  // namespace unishard::converters::deepspeed_sink
