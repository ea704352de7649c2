#include "unishard/converters/layouts.hpp"

#include "unishard/converters/registry.hpp"

#include "formats/format_detection.hpp"
#include "reading/unjoined_parts.hpp"

#include <algorithm>
#include <array>

namespace unishard::converters {
namespace {

constexpr std::string_view kDeepSpeed = "DeepSpeed", kHub = "Hugging Face", kTorch = "PyTorch",
                           kFiles = "single files", kRegular = "deepspeed",
                           kUniversal = "deepspeed-universal";

constexpr std::array kLayouts = {
    Layout{"UniShard", "native", "a checkpoint of any world size and stage",
           "<tag>/manifest.json, <tag>/shard-*.h5", "native", "UniShard's trainer"},
    Layout{kDeepSpeed, kRegular, "ZeRO stages 1 and 2, data-parallel",
           "mp_rank_00_model_states.pt, [bf16_]zero_pp_rank_*_mp_rank_00_optim_states.pt", kRegular,
           "DeepSpeed, UniShard's trainer"},
    Layout{kDeepSpeed, kRegular, "ZeRO stage 3, data-parallel",
           "zero_pp_rank_*_mp_rank_00_model_states.pt, "
           "[bf16_]zero_pp_rank_*_mp_rank_00_optim_states.pt",
           kRegular, "DeepSpeed, UniShard's trainer"},
    Layout{kDeepSpeed, kRegular, "stage 0", "mp_rank_00_model_states.pt", kRegular,
           "DeepSpeed, UniShard's trainer"},
    Layout{kDeepSpeed, kRegular, "tensor-parallel ranks (AutoTP, Megatron), which --tensor writes",
           "mp_rank_*_model_states.pt, zero_pp_rank_*_mp_rank_*_optim_states.pt", kRegular,
           "DeepSpeed"},
    Layout{kDeepSpeed, kRegular, "a pipeline, which --pipeline writes",
           "layer_*-model_states.pt, mp_rank_*_model_states.pt", kRegular, "DeepSpeed"},
    Layout{kDeepSpeed, kRegular, "experts (MoE), data-parallel",
           "layer_*_expert_*_mp_rank_00_model_states.pt, expp_rank_*_mp_rank_00_optim_states.pt",
           kRegular, "DeepSpeed"},
    Layout{kDeepSpeed, kUniversal, "a universal checkpoint",
           "latest_universal, <tag>/zero/<name>/fp32.pt", kUniversal, "DeepSpeed"},
    Layout{kHub, "trainer", "a checkpoint of the Trainer",
           "checkpoint-*/trainer_state.json, checkpoint-*/optimizer.pt", "trainer", "Trainer"},
    Layout{kHub, "accelerate", "a folder of save_state()",
           "optimizer.bin, random_states_*.pkl, model.safetensors", "accelerate",
           "Accelerator.load_state()"},
    Layout{kHub, "safetensors", "a model, in one file or in shards",
           "model.safetensors, model-*-of-*.safetensors, model.safetensors.index.json",
           "safetensors", ""},
    Layout{kHub, "torch", "a model of torch.save, in one file or in shards",
           "pytorch_model.bin, pytorch_model-*-of-*.bin, pytorch_model.bin.index.json", "torch",
           ""},
    Layout{kTorch, "dcp", "a distributed checkpoint (FSDP2, FSDP1, HSDP, DDP)",
           ".metadata, __*_*.distcp", "dcp", "dcp.load(), UniShard's trainer"},
    Layout{kTorch, "dcp", "files of ranks, each saved by itself (verl, FSDP)",
           "*_world_size_*_rank_*.pt", "", "verl, from the files that unishard.verl writes"},
    Layout{kTorch, "torch", "a file of torch.save: model, training, Lightning",
           "*.pt, *.pth, *.bin, *.ckpt", "torch", "the script that saved it"},
    Layout{"Megatron-LM", "dcp", "--ckpt-format torch_dist", ".metadata, common.pt, __*_*.distcp",
           "", ""},
    Layout{"Megatron-LM", "torch", "--ckpt-format torch: ranks of tensors and stages",
           "iter_*/mp_rank_*/model_optim_rng.pt", "", ""},
    Layout{"nanotron", "dcp", "ranks of tensors, stages, experts and ZeRO-1",
           "checkpoint_metadata.json, model/**/model_*.safetensors, optimizer/optimizer_*.pt", "",
           ""},
    Layout{"Meta, Mistral", "torch", "ranks of a Llama, weights only",
           "params.json, consolidated.*.pth", "", ""},
    Layout{kFiles, "safetensors", "one file of safetensors", "*.safetensors", "safetensors", ""},
    Layout{kFiles, "hdf5", "one file of h5py", "*.h5, *.hdf5", "hdf5", ""},
    Layout{kFiles, "npz", "one file of numpy", "*.npz, *.npy", "npz", ""},
    Layout{kFiles, "gguf", "one file without quantization", "*.gguf", "gguf", ""},
};

bool is_read(const std::string& name) {
  const auto formats = known_formats();
  return std::ranges::find(formats, name, &FormatEntry::name) != formats.end();
}

}  // namespace

std::vector<Layout> known_layouts() { return {kLayouts.begin(), kLayouts.end()}; }

std::vector<RefusedLayout> refused_layouts() {
  std::vector<RefusedLayout> refused;
  for (const SignedFormat& sign : signed_formats()) {
    if (is_read(sign.name) || sign.name == "index") continue;
    const auto known = std::ranges::find(refused, sign.what, &RefusedLayout::what);
    if (known == refused.end()) {
      refused.push_back({sign.name, sign.what, sign.files});
    } else if (!sign.files.empty() && known->files.find(sign.files) == std::string::npos) {
      known->files += (known->files.empty() ? "" : ", ") + sign.files;
    }
  }
  for (const UnjoinedParts& parts : unjoined_parts())
    refused.push_back({"parts", std::string(parts.what), std::string(parts.files)});
  return refused;
}

}  // namespace unishard::converters
