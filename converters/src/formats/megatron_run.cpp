#include "formats/megatron_run.hpp"

#include <string_view>

namespace unishard::converters {
namespace {

class Arguments {
 public:
  explicit Arguments(torch::Value args) : args_(args) {}

  std::optional<std::uint64_t> number(std::string_view name) const {
    const auto value = find(name);
    return value ? std::optional(value->unsigned_int()) : std::nullopt;
  }
  bool has(std::string_view name) const { return find(name).has_value(); }
  bool is_set(std::string_view name) const { return number(name).value_or(0) != 0; }
  bool is(std::string_view name, std::string_view text) const {
    const auto value = find(name);
    return value && value->is(torch::NodeKind::Str) && value->string() == text;
  }

 private:
  std::optional<torch::Value> find(std::string_view name) const {
    const auto value = args_.is_dict() ? args_.find(name) : args_.field(name);
    return value && !value->is_none() ? value : std::nullopt;
  }
  torch::Value args_;
};

/// Heads may have any size where the arguments do not tell it.
std::optional<std::uint64_t> size_of_head(const Arguments& args, std::uint64_t heads) {
  if (heads == 0) return std::nullopt;
  if (const auto channels = args.number("kv_channels")) return channels;
  const auto hidden = args.number("hidden_size");
  if (!hidden || *hidden % heads != 0) return std::nullopt;
  return *hidden / heads;
}

void read_sizes(const Arguments& args, MegatronRun& run) {
  run.vocabulary = args.number("vocab_size");
  run.padded_vocabulary = args.number("padded_vocab_size");
  if (const auto unit = args.number("make_vocab_size_divisible_by"))
    run.vocabulary_unit = *unit * run.tensor_ranks;
  run.hidden = args.number("hidden_size");
  run.positions = args.number("max_position_embeddings");
  run.has_unlike_layers = args.has("heterogeneous_layers_config_path");
  if (run.has_unlike_layers) return;
  run.inner = args.number("ffn_hidden_size");
  const std::uint64_t heads = args.number("num_attention_heads").value_or(0);
  const auto head = size_of_head(args, heads);
  if (!head) return;
  run.columns_of_heads = *head * heads;
  if (!args.is_set("attention_output_gate"))  // of the queries
    run.rows_of_attention = *head * (heads + 2 * run.heads_of_keys);
}

MegatronRun run_of(const Arguments& args) {
  MegatronRun run;
  run.tensor_ranks = args.number("tensor_model_parallel_size").value_or(1);
  run.stages = args.number("pipeline_model_parallel_size").value_or(1);
  run.virtual_stages = args.number("virtual_pipeline_model_parallel_size").value_or(1);
  run.layers = args.number("num_layers").value_or(0);
  const auto groups =
      args.is_set("group_query_attention") ? args.number("num_query_groups") : std::nullopt;
  run.heads_of_keys = groups ? *groups : args.number("num_attention_heads").value_or(0);
  run.has_experts = args.number("expert_model_parallel_size").value_or(1) > 1 ||
                    args.number("num_experts").value_or(0) > 1;
  run.is_gated = args.is_set("swiglu") || args.is_set("quick_geglu");
  run.is_tied = !args.is_set("untie_embeddings_and_output_weights");
  run.has_positions = args.is("position_embedding_type", "learned_absolute");
  run.has_biases = args.is_set("add_bias_linear");
  run.has_norm_biases = args.is("normalization", "LayerNorm");
  run.has_distributed_optimizer = args.is_set("use_distributed_optimizer");
  read_sizes(args, run);
  return run;
}

}  // namespace

std::optional<std::pair<MegatronRun, MegatronProcess>> read_megatron_run(torch::Value root) {
  const auto found = root.is_dict() ? root.find("args") : std::nullopt;
  if (!found || (!found->is(torch::NodeKind::Object) && !found->is_dict())) return std::nullopt;
  const Arguments args(*found);
  return std::pair(run_of(args),
                   MegatronProcess{.rank = args.number("rank"),
                                   .world_size = args.number("world_size"),
                                   .has_stages_inside = args.is_set("use_tp_pp_dp_mapping")});
}

}  // namespace unishard::converters
