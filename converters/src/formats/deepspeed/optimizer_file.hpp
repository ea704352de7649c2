#pragma once
// One *_optim_states.pt file: one rank's part of each flat group.
#include "formats/deepspeed/pickle_fields.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::converters::deepspeed {

/// One state of a flat group on one rank.
struct FlatState {
  std::string name;     ///< for example "fp32" or "exp_avg"
  TensorView view;      ///< 1-D
  std::string swap_id;  ///< id of the NVMe swap file of an empty view; may be empty
};

/// One flat group (stages 1 and 2: a parameter group; stage 3: a sub-group) on one rank.
struct FlatGroup {
  FlatState master;
  std::vector<FlatState> states;
  /// States without dimensions, which all parameters of the group share (NAdam's mu_product).
  std::vector<FlatState> scalars;
  std::optional<std::int64_t> step;
};

/// A part of a parameter in a partition of stages 1 and 2.
struct FlatSlice {
  std::string fqn;
  std::uint64_t elements = 0;
  std::uint64_t begin = 0;  ///< its first element in the partition
};

struct OptimizerFile {
  std::string name;
  bool tells_its_name = false;  ///< the archive in it does; see module_files.hpp
  std::uint32_t stage = 0;
  bool tells_stage = false;  ///< BF16_Optimizer, which partitions as stage 1 does, writes none
  std::vector<FlatGroup> groups;
  std::vector<std::uint64_t> partition_counts;  ///< one, or one per group
  /// Unused elements after each parameter of each group; may be empty.
  std::vector<std::vector<std::uint64_t>> gaps;
  std::optional<ShapeGroups> param_shapes;  ///< before 0.6.0
  /// The parts of parameters in each group's partition; empty when the file does not tell them.
  std::vector<std::vector<FlatSlice>> slices;
  std::string version;  ///< DeepSpeed's version; empty when not recorded
  /// One entry per parameter group; null when the file has none (elastic checkpoints).
  Json settings;
  Json loss_scaler;
  /// The flat groups of each parameter group. Empty when the file does not record them.
  std::vector<std::vector<std::uint64_t>> members;
};

/// Throws: Corrupt or Unsupported, naming the file.
OptimizerFile read_optimizer_file(const TorchFile& file, Notes& notes);

/// Returns `param_groups` of an optimizer as JSON without "params". `members` receives "params"
/// when they are numbers.
Json read_group_settings(const TorchFile& file, Value param_groups,
                         std::vector<std::vector<std::uint64_t>>& members, Notes& notes);

/// Takes the settings away, and returns their loss: `file` has states of `groups` groups, and the
/// settings of others, so that nothing tells which are whose.
Loss lost_settings(const std::string& file, std::size_t groups, Json& settings);

/// Returns the fields of a LossScaler or DynamicLossScaler; null when there is none.
Json read_loss_scaler(const TorchFile& file, std::optional<Value> scaler, Notes& notes);

/// Reads the entries of one parameter's or flat group's optimizer state into `states`, and the step
/// into `step`. `dimensions` is the number of dimensions of the tensors, nullopt for any; tensors
/// without dimensions are always read. Other values become notes.
void read_states(const TorchFile& file, Value entries, std::optional<std::size_t> dimensions,
                 std::vector<FlatState>& states, std::optional<std::int64_t>& step, Notes& notes);

/// Reads the states of a flat group, of which `group` has the master.
void read_flat_states(const TorchFile& file, Value entries, FlatGroup& group, Notes& notes);

/// Returns the state of parameter `index` in a torch optimizer's `state` dict.
std::optional<Value> state_of(Value state, std::uint64_t index);

}  // namespace unishard::converters::deepspeed
