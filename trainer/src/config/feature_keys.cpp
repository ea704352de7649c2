// Features of DeepSpeed that are not built. Switched off, they are accepted.
#include "config/key_table.hpp"

namespace unishard::trainer::detail {
namespace {

using enum KeyType;
using enum KeyUse;

constexpr std::string_view kGone = "DeepSpeed 0.19 has removed it, and it is not supported here";

constexpr ConfigKey kFeatureKeys[] = {
    {.name = "amp", .use = Refused, .text = kGone},
    {.name = "autotuning",
     .use = Refused,
     .text = "there is no tuner: `unishard estimate` helps to choose"},
    {.name = "autotuning_config",
     .use = Refused,
     .text = "there is no tuner: `unishard estimate` helps to choose"},
    {.name = "compile",
     .use = Refused,
     .text = "the model is compiled C++; torch.compile needs Python"},
    {.name = "compression_training",
     .use = Refused,
     .text = "quantization and pruning while training are not supported; DeepSpeed 0.19 has "
             "removed them"},
    {.name = "curriculum_learning", .use = Refused, .text = kGone},
    {.name = "data_efficiency",
     .use = Refused,
     .text = "curricula and dropping of tokens are not supported"},
    {.name = "datastates_ckpt",
     .use = Noted,
     .text = "has no effect: checkpoints are saved behind the training anyway (--async-save)"},
    {.name = "eigenvalue", .use = Refused, .text = kGone},
    {.name = "elasticity",
     .use = Refused,
     .text = "DeepSpeed 0.19 has removed it. Any world size resumes any checkpoint here; give "
             "train_batch_size and train_micro_batch_size_per_gpu"},
    {.name = "expert_parallel", .use = Refused, .text = "there are no experts"},
    {.name = "fp8", .use = Refused, .text = "training in 8 bits is not supported"},
    {.name = "graph_harvesting",
     .type = Boolean,
     .initial = "false",
     .use = Refused,
     .text = kGone},
    {.name = "hybrid_engine",
     .use = Refused,
     .text = "the engine trains and does not generate text"},
    {.name = "nebula", .use = Refused, .text = kGone},
    {.name = "pipeline",
     .use = Noted,
     .text =
         "has no effect: there are no pipeline stages, as in DeepSpeed without a PipelineModule"},
    {.name = "progressive_layer_drop", .use = Refused, .text = kGone},
    {.name = "quantize_training", .use = Refused, .text = kGone},
    {.name = "sparse_attention", .use = Refused, .text = kGone},
    {.name = "sparse_gradients",
     .type = Boolean,
     .initial = "false",
     .use = Refused,
     .text = kGone},
    {.name = "tensor_parallel",
     .use = Refused,
     .text = "layers are not split over ranks; ZeRO stage 3 splits their parameters"},
    {.name = "weight_quantization",
     .use = Refused,
     .text = "quantization of weights while training is not supported"},
};

}  // namespace

std::span<const ConfigKey> feature_keys() { return kFeatureKeys; }

}  // namespace unishard::trainer::detail
