#pragma once
// The arguments of a run of Megatron-LM, which each of its classic files has as `args`.
#include "containers/pickle.hpp"

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace unishard::converters {

/// The end of names of what Transformer Engine keeps of a module beside its weights: scales of
/// 8-bit products.
inline constexpr std::string_view kModuleState = "._extra_state";

/// What all files of a run have alike.
struct MegatronRun {
  std::uint64_t tensor_ranks = 1, stages = 1, virtual_stages = 1, layers = 0, heads_of_keys = 0;
  bool has_experts = false;
  bool is_gated = false;  ///< swiglu: a rank has its half of the gate, then its half of the rest
  bool is_tied = false;   ///< the last stage has a copy of the embedding
  bool has_positions = false;                    ///< a table of learned positions, surely
  bool has_biases = false;                       ///< beside the matrices of all layers, surely
  bool has_norm_biases = false;                  ///< surely
  bool has_distributed_optimizer = false;        ///< which saves files of its own
  std::optional<std::uint64_t> vocabulary = {};  ///< without padding, where it was given
  /// With padding, which fills it up to a multiple of `vocabulary_unit`.
  std::optional<std::uint64_t> padded_vocabulary = {}, vocabulary_unit = {};
  std::optional<std::uint64_t> hidden = {}, inner = {};  ///< inner: ffn_hidden_size
  std::optional<std::uint64_t> rows_of_attention = {};   ///< of queries, keys and values
  std::optional<std::uint64_t> columns_of_heads = {};    ///< of the matrix behind attention
  std::optional<std::uint64_t> positions = {};           ///< rows of the table of positions
  bool has_unlike_layers = false;                        ///< each has sizes of its own
  bool operator==(const MegatronRun&) const = default;
};

/// What the arguments in one file say of the process that saved it.
struct MegatronProcess {
  std::optional<std::uint64_t> rank = {}, world_size = {};
  bool has_stages_inside = false;  ///< use_tp_pp_dp_mapping: data-parallel ranks are outermost
};

/// Returns nullopt for a file, whose pickle has the root `root`, without arguments.
std::optional<std::pair<MegatronRun, MegatronProcess>> read_megatron_run(torch::Value root);

}  // namespace unishard::converters
