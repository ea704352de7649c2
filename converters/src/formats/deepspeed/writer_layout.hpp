#pragma once
// Where DeepSpeed puts the elements of parameters: its flat vectors of every stage, as its
// partition code lays them out. Pure arithmetic.
#include "unishard/format/tensor_info.hpp"

#include "formats/deepspeed/writer_model.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace unishard::converters::deepspeed_sink {

/// Elements `range` of a parameter, at element `at` of a vector.
struct Slot {
  std::size_t parameter = 0;
  ElementRange range;
  std::uint64_t at = 0;
};

/// One "parameter" of the optimizer: what it keeps states for. One rank's.
struct FlatVector {
  std::size_t group = 0;
  Shape shape;
  std::vector<Slot> slots;  ///< in order of `at`; the rest is padding
  bool is_whole = false;    ///< exactly one parameter, in its own shape
};

/// A group of stage 1 and 2: one vector, cut into equal pieces.
struct PartitionedGroup {
  std::vector<std::size_t> order;      ///< parameters, as they follow each other
  std::vector<std::uint64_t> offsets;  ///< of each in the vector
  std::vector<std::uint64_t> gaps;     ///< behind each, parameter_alignment
  std::uint64_t used = 0;              ///< end of the last parameter
  std::uint64_t piece = 0;             ///< elements of a rank

  std::uint64_t padding(std::uint32_t rank) const;  ///< elements of the rank's piece behind `used`
};

struct PartitionRules {
  std::uint32_t world_size = 1;
  bool round_robin = false;
  bool aligned = false;  ///< zero_optimization.parameter_alignment
  std::uint64_t sub_group_size = 0;
};
PartitionRules partition_rules(const Catalog& catalog);

PartitionedGroup partition(const SinkModel& model, std::size_t group, const PartitionRules& rules);
FlatVector piece_of(const SinkModel& model, std::size_t group, const PartitionedGroup& partitioned,
                    std::uint32_t rank);

/// A sub-group of stage 3: these parameters, each cut into `world_size` pieces by itself.
struct SubGroup {
  std::size_t group = 0;
  std::vector<std::size_t> parameters;
};
std::vector<SubGroup> sub_groups(const SinkModel& model, const PartitionRules& rules);
FlatVector piece_of(const SinkModel& model, const SubGroup& sub_group, std::uint32_t rank,
                    std::uint32_t world_size);
/// Rank's elements of a tensor that is cut by itself; the piece is as long for every rank.
ElementRange own_range(std::uint64_t elements, std::uint32_t rank, std::uint32_t world_size);
std::uint64_t own_length(std::uint64_t elements, std::uint32_t world_size);

/// Stage 0: a group in one vector (fused optimizers), or every parameter by itself.
std::vector<FlatVector> fused_groups(const SinkModel& model);
std::vector<FlatVector> single_parameters(const SinkModel& model);

}  // namespace unishard::converters::deepspeed_sink
