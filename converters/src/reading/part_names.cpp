#include "reading/part_names.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

namespace unishard::converters {
namespace {

constexpr std::string_view kMegatron = "Megatron-LM", kNanotron = "nanotron",
                           kRanks = "ranks that save by themselves";

// The sources of the names: huggingface_hub split_torch_state_dict_into_shards and transformers
// modeling_utils (SAFE_WEIGHTS_NAME); diffusers utils/constants (the variant before or behind the
// number); torchtune training/checkpointing/_checkpointer (hf_model_{:04d}_{epoch}.pt, later
// ft-model-{:05d}-of-{:05d}); colossalai checkpoint_io/utils get_shard_filename; llama
// llama/generation (consolidated.*.pth); megatron training/checkpointing get_checkpoint_name;
// nemo utils/model_utils inject_model_parallel_rank; nanotron serialize/utils get_path;
// dinov2 fsdp/__init__ rankstr; composer utils/checkpoint ({rank}); verl and accelerate FSDP
// (world_size_<N>_rank_<r>, fsdp_<i>_rank<r>); fairseq checkpoint_utils (-shard<n>, -model_part-);
// torch.distributed.checkpoint hf_storage (shard-<rank>-); deepspeed runtime/engine.
constexpr std::array<PartPattern, 29> kPatterns = {{
    {"shard-<n>-*.safetensors", PartKind::Cuts, "torch.distributed.checkpoint"},
    {"*_pp-rank-<n>-of-<of>_tp-rank-<n>-of-<of>.*", PartKind::Cuts, kNanotron},
    {"*_world_size_<of>_rank_<n>.*", PartKind::Cuts, kRanks},
    {"consolidated.<n>-of-<of>.pth", PartKind::Cuts, "Meta's Llama"},
    {"model<n>-mp<of>.safetensors", PartKind::Cuts, "DeepSeek's convert.py"},
    {"*-<n>-of-<of>.*", PartKind::Shards, "transformers, diffusers, torchtune, Colossal-AI"},
    {"*_<n>_of_<of>.*", PartKind::Shards, "several programs"},
    {"hf_model_<n>_<_>.pt", PartKind::Shards, "torchtune"},
    {"pytorch_model-<n>.bin", PartKind::Shards, "Colossal-AI"},
    {"consolidated.<n>.pth", PartKind::Cuts, "Meta's Llama"},
    {"consolidated.<n>.pt", PartKind::Cuts, "Meta's Llama"},
    {"zero_pp_rank_<n>_mp_rank_<n>_*", PartKind::Cuts, "DeepSpeed"},
    {"bf16_zero_pp_rank_<n>_mp_rank_<n>_*", PartKind::Cuts, "DeepSpeed"},
    {"fp16_zero_pp_rank_<n>_mp_rank_<n>_*", PartKind::Cuts, "DeepSpeed"},
    {"mp_rank_<n>_model_states.pt", PartKind::Cuts, "DeepSpeed"},
    {"layer_<n>-model_<n>-model_states.pt", PartKind::Cuts, "DeepSpeed"},
    {"layer_<n>-model_states.pt", PartKind::Cuts, "DeepSpeed"},
    {"layer_<n>_expert_<n>_mp_rank_<n>_model_states.pt", PartKind::Cuts, "DeepSpeed"},
    {"*-model_part-<n>-shard<n>.pt", PartKind::Cuts, "fairseq"},
    {"*-model_part-<n>.pt", PartKind::Cuts, "fairseq"},
    {"*-shard<n>.pt", PartKind::Cuts, "fairseq"},
    {"*rank_<n>.*", PartKind::Cuts, kRanks},
    {"*rank<n>.*", PartKind::Cuts, kRanks},
    {"*rank-<n>.*", PartKind::Cuts, kRanks},
    {"*shard_<n>.*", PartKind::Shards, "several programs"},
    {"*part_<n>.*", PartKind::Shards, "several programs"},
    {"mp_rank_<n>", PartKind::Cuts, kMegatron},
    {"mp_rank_<n>_<n>", PartKind::Cuts, kMegatron},
    {"mp_rank_<n>_<n>_<n>", PartKind::Cuts, kMegatron},
}};

/// Ends of files that hold tensors; a folder has none of them. Others beside them (`.json`, `.txt`,
/// `.pkl` of random states) are no parts.
constexpr std::array<std::string_view, 9> kFileSuffixes = {
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".npz", ".msgpack"};

constexpr std::string_view kNumber = "<n>", kCount = "<of>", kSame = "<_>";

std::string_view digits_of(std::string_view text) {
  return text.substr(0, std::min(text.find_first_not_of("0123456789"), text.size()));
}

std::optional<std::uint64_t> number_of(std::string_view digits) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size())
    return std::nullopt;
  return number;
}

std::uint64_t product(std::uint64_t a, std::uint64_t b) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  return b != 0 && a > kMost / b ? kMost : a * b;
}

/// Matches a pattern against a name and collects what its fields hold. A name has at most 255
/// bytes and a pattern two `*`, so trying every place is cheap.
class Matcher {
 public:
  bool fits(std::string_view pattern, std::string_view name) {
    if (pattern.empty()) return name.empty();
    if (pattern.front() == '*') return fits_any_text(pattern.substr(1), name);
    for (const std::string_view field : {kNumber, kCount, kSame}) {
      if (pattern.starts_with(field)) return fits_field(field, pattern, name);
    }
    if (name.empty() || name.front() != pattern.front()) return false;
    found.set += name.front();
    return fits(pattern.substr(1), name.substr(1));
  }

  PartName found;

 private:
  bool fits_any_text(std::string_view pattern, std::string_view name) {
    const PartName before = found;
    for (std::size_t length = name.size() + 1; length-- > 0;) {
      found = before;
      found.set += name.substr(0, length);
      if (fits(pattern, name.substr(length))) return true;
    }
    found = before;
    return false;
  }

  bool fits_field(std::string_view field, std::string_view pattern, std::string_view name) {
    const std::string_view digits = digits_of(name);
    const auto number = number_of(digits);
    if (!number) return false;
    if (field == kNumber) {
      found.numbers.push_back(*number);
      found.set += '*';
    } else {
      found.set += digits;
    }
    if (field == kCount) found.count = product(found.count.value_or(1), *number);
    return fits(pattern.substr(field.size()), name.substr(digits.size()));
  }
};

}  // namespace

std::span<const PartPattern> part_patterns() { return kPatterns; }

std::optional<PartName> match(const PartPattern& pattern, std::string_view name) {
  Matcher matcher;
  if (!matcher.fits(pattern.pattern, name)) return std::nullopt;
  matcher.found.kind = pattern.kind;
  matcher.found.writer = pattern.writer;
  return std::move(matcher.found);
}

std::optional<PartName> parse_part_name(std::string_view name) {
  const bool is_of_tensors = std::ranges::any_of(
      kFileSuffixes, [&](std::string_view suffix) { return name.ends_with(suffix); });
  const bool is_folder = name.starts_with("mp_rank_") && name.find('.') == std::string_view::npos;
  constexpr std::size_t kLongestName = 255;
  if ((!is_of_tensors && !is_folder) || name.size() > kLongestName) return std::nullopt;
  for (const PartPattern& pattern : kPatterns) {
    if (auto found = match(pattern, name)) return found;
  }
  return std::nullopt;
}

}  // namespace unishard::converters
