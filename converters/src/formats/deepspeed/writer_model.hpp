#pragma once
// A catalog as a DeepSpeed training run: trainable parameters with master copies and optimizer
// states, parameter groups, frozen parameters, buffers.
// Thread safety: values and pure functions.
#include "unishard/format/catalog.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unishard::converters::deepspeed_sink {

using TensorIndex = std::uint32_t;  ///< into Catalog::tensors

struct SinkParameter {
  std::string fqn;
  Shape shape;
  std::uint64_t elements = 0;
  TensorIndex master = 0;  ///< source of the fp32 values
  /// The module's own tensor; nullopt: rounded from the master.
  std::optional<TensorIndex> weights;
  std::vector<std::pair<std::string, TensorIndex>> states;

  std::optional<TensorIndex> state(std::string_view name) const;
};

struct SinkGroup {
  Json settings;                        ///< without `params`; complete for the optimizer
  std::vector<std::size_t> parameters;  ///< into SinkModel::parameters, in the group's own order
  std::vector<std::string> states;      ///< states of its parameters, for example "exp_avg"
  /// States that are one number of each parameter, and one of a flat group: "mu_product" of NAdam.
  std::vector<std::string> scalars;
  /// Returns true for DeepSpeed's FusedAdam or CPUAdam, whose `step` is an int.
  bool counts_in_int() const { return settings.contains("bias_correction"); }
  bool is_fused() const {
    return counts_in_int() && !settings.contains("amsgrad") && !settings.contains("use_muon");
  }
  /// Returns true for the matrices of DeepSpeed's MuonWithAuxAdam.
  bool is_muon() const { return settings.value("use_muon", Json()) == true; }
};

/// An entry of the module's state dict.
struct ModuleEntry {
  enum class Kind : std::uint8_t { Trainable, Frozen, Buffer };
  std::string fqn;
  Kind kind = Kind::Trainable;
  TensorIndex tensor = 0;  ///< the tensor whose bytes it holds
  DType dtype = DType::Float32;
};

struct SinkModel {
  DType precision = DType::Float32;  ///< precision of the run: bfloat16, float16 or float32
  std::vector<SinkParameter> parameters;
  std::vector<SinkGroup> groups;         ///< none is empty
  std::vector<std::size_t> idle_groups;  ///< of the catalog, those without trainable parameters
  std::vector<ModuleEntry> module;       ///< in model order
  std::vector<std::pair<std::string, std::size_t>> aliases;  ///< second name -> entry of `module`
  std::vector<std::string> notes;
  /// Parameters in float32 or float64 beside others in 16 bits, which the module has in 16 bits,
  /// too.
  std::vector<std::string> wide_weights;
  bool saves_no_frozen = false;  ///< see kSavesNoFrozen

  /// Returns true when the run saves frozen parameters.
  bool has_frozen() const {
    return !saves_no_frozen &&
           std::ranges::count(module, ModuleEntry::Kind::Frozen, &ModuleEntry::kind) > 0;
  }
  /// Returns true for a second name of what a run without frozen parameters has under that name.
  bool is_unsaved(const ModuleEntry& entry) const {
    return saves_no_frozen && entry.kind == ModuleEntry::Kind::Frozen;
  }
};

/// Throws: Unsupported or Mismatch, naming the tensor, when the catalog is no training run.
SinkModel describe_model(const Catalog& catalog);

/// Returns notes about the tensors that a plan leaves out (indices), counted by state.
std::vector<std::string> note_left_out(const Catalog& catalog, const SinkModel& model,
                                       const std::vector<std::size_t>& left_out);

/// Returns the type of a flat vector of these tensors: their common type, else float32.
DType flat_dtype(const Catalog& catalog, const std::vector<TensorIndex>& tensors);

/// Returns a setting of DeepSpeed's configuration, or nullptr. Example: setting(config,
/// {"zero_optimization", "stage"}).
const Json* setting(const Json& config, std::initializer_list<std::string_view> path);
bool is_set(const Json& config, std::initializer_list<std::string_view> path);

}  // namespace unishard::converters::deepspeed_sink
