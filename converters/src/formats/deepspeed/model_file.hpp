#pragma once
// One *_model_states.pt file: the module, the shapes of the parameters in the flat partitions, and
// counters.
#include "formats/deepspeed/pickle_fields.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unishard::converters::deepspeed {

struct ModelFile {
  std::string name;
  std::vector<NamedView> module;  ///< parameters and buffers in the model's order
  bool has_module = true;         ///< false: it is in the layer files of a pipeline
  std::optional<std::vector<std::string>> buffer_names;  ///< nullopt before 0.5.0
  std::optional<ShapeGroups> param_shapes;               ///< per flat group; nullopt at stage 0
  std::vector<NamedShape> frozen_shapes;
  bool lists_frozen = false;     ///< frozen_param_shapes is there, be it empty
  bool excludes_frozen = false;  ///< it is None: the run saved none, or did not partition gradients
  std::vector<NamedView> frozen_fragments;
  std::vector<std::pair<std::string, std::string>> aliases;  ///< second name, first name
  std::optional<std::uint64_t> world_size;
  std::int64_t global_steps = 0, skipped_steps = 0;
  std::string version;  ///< DeepSpeed's version; empty when not recorded
  Json data_position, scheduler, config, client_state;
  /// What UniShard's own sink adds to the client state: `rng`, `step` (when no state has one) and,
  /// at stage 0, `parameters` (the fqns of every group). An object; empty in files that DeepSpeed
  /// wrote.
  Json own = Json::object();
};

/// How a run was parallel beside ZeRO.
struct ParallelDegrees {
  std::uint64_t pipeline = 1, tensor = 1;
  bool is_told = false;          ///< DeepSpeed 0.19.5 and later; before, `tensor` is their product
  bool has_layer_files = false;  ///< the module is in the layer files of a pipeline
  bool has_experts = false;
  bool has_auto_experts = false;  ///< experts that AutoEP cut out of a model's own

  /// Returns what the file says, for messages.
  std::string text() const;
};
/// Throws: Corrupt.
ParallelDegrees degrees_of(const TorchFile& file);

/// Reads what one rank holds; when the run was tensor-parallel, its parts of the tensors.
/// `placeholders` is true for ZeRO stage 3, whose module has empty parameters.
/// Throws: Corrupt; Unsupported for quantised weights.
ModelFile read_model_file(const TorchFile& file, bool placeholders, Notes& notes);
/// Reads the same of one rank of a tensor- or pipeline-parallel run, without its tensors, which are
/// not whole: `module` and the frozen ones stay empty, and the shapes are those of the rank.
ModelFile read_parallel_model_file(const TorchFile& file, Notes& notes);

/// Returns whether the name is that of a tensor that bitsandbytes keeps beside a quantized weight.
bool is_scale(std::string_view name);

/// Returns config["zero_optimization"][key]; null when there is none.
Json zero_setting(const Json& config, const char* key);

}  // namespace unishard::converters::deepspeed
