#pragma once
// One *_optim_states.pt file: what one rank holds of each flat group.
#include "formats/deepspeed/pickle_fields.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::converters::deepspeed {

/// One state of a flat group on one rank.
struct FlatState {
  std::string name;     ///< "fp32", "exp_avg", ...
  TensorView view;      ///< 1-D
  std::string swap_id;  ///< names the NVMe swap file of an empty view; may be empty
};

/// One flat group (stages 1 and 2: a parameter group; stage 3: a sub-group) on one rank.
struct FlatGroup {
  FlatState master;
  std::vector<FlatState> states;
  std::optional<std::int64_t> step;
};

struct OptimizerFile {
  std::string name;
  std::uint32_t stage = 0;
  std::vector<FlatGroup> groups;
  std::vector<std::uint64_t> partition_counts;  ///< one, or one per group
  std::vector<std::vector<std::uint64_t>>
      gaps;                                 ///< after each parameter of each group; may be empty
  std::optional<ShapeGroups> param_shapes;  ///< before 0.6.0
  std::string version;                      ///< of DeepSpeed; empty when not told
  Json settings;  ///< per parameter group; null when the file has none (elastic checkpoints)
  Json loss_scaler;
  /// Per parameter group: which flat groups are its own. Empty when the file does not tell.
  std::vector<std::vector<std::uint64_t>> members;
};

OptimizerFile read_optimizer_file(const TorchFile& file, Notes& notes);

/// `param_groups` of an optimizer as JSON without "params". `members` receives "params" where they
/// are numbers. Throws Unsupported for groups of experts.
Json read_group_settings(const TorchFile& file, Value param_groups,
                         std::vector<std::vector<std::uint64_t>>& members, Notes& notes);

/// LossScaler and DynamicLossScaler as their fields; null for none.
Json read_loss_scaler(const TorchFile& file, std::optional<Value> scaler, Notes& notes);

/// Entries of one parameter's or flat group's optimizer state. `dimensions`: of its tensors,
/// nullopt for any. The step and other numbers are told apart from them; what is neither becomes a
/// note.
void read_states(const TorchFile& file, Value entries, std::optional<std::size_t> dimensions,
                 std::vector<FlatState>& states, std::optional<std::int64_t>& step, Notes& notes);

/// The state of parameter `index` in a torch optimizer's `state` dict.
std::optional<Value> state_of(Value state, std::uint64_t index);

}  // namespace unishard::converters::deepspeed
