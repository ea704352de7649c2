#include "reading/unjoined_parts.hpp"

#include "unishard/format/error.hpp"

#include "reading/completeness.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace unishard::converters {
namespace {

/// Files in a folder `mp_rank_00` that hold a rank's part.
constexpr std::array<std::string_view, 3> kRankFiles = {"model_optim_rng.pt", "model_rng.pt",
                                                        "model_weights.ckpt"};
constexpr std::string_view kRankFolder = "mp_rank_";

/// Upper bounds on the folders that are listed, and on how deep they may lie.
constexpr int kListings = 256, kSearchDepth = 2;

/// What is said of a set, by the program that writes such names.
struct Advice {
  std::string_view writer, what, next;
  std::string_view files = {};  ///< empty where other files of the writer are read
};
constexpr std::array<Advice, 3> kAdvice = {{
    {"Megatron-LM", "a tensor- or pipeline-parallel checkpoint of Megatron-LM",
     "convert it with Megatron-LM's tools/checkpoint/convert.py, or save it with --ckpt-format "
     "torch_dist"},
    {"Meta's Llama", "a tensor-parallel model of Meta",
     "put its params.json beside them, or convert it with transformers' "
     "convert_llama_weights_to_hf.py"},
    {"fairseq", "a model of fairseq that is cut into parts",
     "put it together with fairseq's or metaseq's scripts for consolidated checkpoints",
     "*-shard*.pt, *-model_part-*.pt"},
}};
constexpr Advice kUnknown = {"", "the parts of a sharded or parallel model, one for each rank",
                             "save the whole model with the program that wrote them, or with "
                             "torch.distributed.checkpoint",
                             "*rank_*.pt, *rank*.pt, *rank-*.pt, model*-mp*.safetensors"};

std::string sentence(std::string_view writer, std::uint64_t parts, const std::string& first,
                     const std::string& last) {
  const auto* const known = std::ranges::find(kAdvice, writer, &Advice::writer);
  const Advice& advice = known == kAdvice.end() ? kUnknown : *known;
  const std::string which =
      first == last ? unishard::quote(first)
                    : fmt::format("{} to {}", unishard::quote(first), unishard::quote(last));
  return fmt::format(
      "{}, in {} parts ({}); nothing in them says how they make whole tensors: {}, or, where they "
      "are of tensor parallelism alone, say it with --merge-rules (`inspect --layout` proposes "
      "rules)",
      advice.what, parts, which, advice.next);
}

class Search {
 public:
  explicit Search(Storage& storage) : storage_(storage) {}

  std::optional<std::string> in(const Path& folder, const Path& below, int depth) {
    const std::vector<Entry> entries = list(folder);
    if (auto found = own_rank(folder, entries)) return found;
    if (auto found = rank_folders(folder, below, entries)) return found;
    if (auto found = cut_files(below, entries)) return found;
    if (auto found = other_shards(entries)) return found;
    for (const Entry& entry : entries) {
      if (depth == 0 || entry.kind != EntryKind::Directory || entry.name.starts_with('.')) continue;
      if (auto found = in(folder / entry.name, below / entry.name, depth - 1)) return found;
    }
    return std::nullopt;
  }

 private:
  std::vector<Entry> list(const Path& folder) {
    if (listings_++ >= kListings) return {};
    try {
      return storage_.list(folder);
    } catch (const Error&) {
      return {};  // a folder that may not be looked into, or that was removed meanwhile
    }
  }

  static bool has_rank_file(const std::vector<Entry>& entries) {
    return std::ranges::any_of(
        entries, [](const Entry& entry) { return std::ranges::count(kRankFiles, entry.name) > 0; });
  }

  /// The folder of one rank: the others lie beside it.
  std::optional<std::string> own_rank(const Path& folder, const std::vector<Entry>& entries) {
    const std::string name = folder.filename().string();
    if (!name.starts_with(kRankFolder) || !parse_part_name(name) || !has_rank_file(entries))
      return std::nullopt;
    std::vector<std::string> names;
    for (const Entry& entry : list(folder.parent_path())) names.push_back(entry.name);
    for (const FileSet& set : find_sets(names)) {
      if (set.files.size() > 1 && set.name == parse_part_name(name)->set)
        return fmt::format("one rank's folder of {}",
                           sentence(set.writer, set.files.size(), set.files.begin()->second,
                                    set.files.rbegin()->second));
    }
    return std::nullopt;
  }

  std::optional<std::string> rank_folders(const Path& folder, const Path& below,
                                          const std::vector<Entry>& entries) {
    std::vector<std::string> names;
    for (const Entry& entry : entries) {
      if (entry.kind == EntryKind::Directory && entry.name.starts_with(kRankFolder))
        names.push_back(entry.name);
    }
    for (const FileSet& set : find_sets(names)) {
      const std::string& first = set.files.begin()->second;
      if (!has_rank_file(list(folder / first))) continue;
      if (set.files.size() == 1) return one_rank(folder, below, first);
      return sentence(set.writer, set.files.size(), (below / first).string(),
                      (below / set.files.rbegin()->second).string());
    }
    return std::nullopt;
  }

  /// A model that is not cut can be read from its file.
  std::optional<std::string> one_rank(const Path& folder, const Path& below,
                                      const std::string& rank) {
    for (const Entry& entry : list(folder / rank)) {
      if (std::ranges::count(kRankFiles, entry.name) > 0)
        return fmt::format("a checkpoint of Megatron-LM in one part: name its file, {}",
                           unishard::quote((below / rank / entry.name).string()));
    }
    return std::nullopt;
  }

  static std::optional<std::string> cut_files(const Path& below,
                                              const std::vector<Entry>& entries) {
    std::vector<std::string> names;
    for (const Entry& entry : entries) {
      if (entry.kind != EntryKind::Directory) names.push_back(entry.name);
    }
    for (const FileSet& set : find_sets(names)) {
      const bool is_several = set.files.size() > 1 || set.count.value_or(1) > 1;
      if (set.kind != PartKind::Cuts || set.writer == "DeepSpeed" || !is_several) continue;
      std::string text = sentence(set.writer, std::max<std::uint64_t>(set.expected(), 2),
                                  (below / set.files.begin()->second).string(),
                                  (below / set.files.rbegin()->second).string());
      if (const std::string problem = set.problem(); !problem.empty() && set.count)
        text = fmt::format("{} ({})", text, problem);
      return text;
    }
    return std::nullopt;
  }

  /// Shards of formats that UniShard does not join. Those of safetensors and torch.save have
  /// readers.
  static std::optional<std::string> other_shards(const std::vector<Entry>& entries) {
    std::vector<std::string> names;
    for (const Entry& entry : entries) {
      if (entry.kind != EntryKind::Directory) names.push_back(entry.name);
    }
    for (const FileSet& set : find_sets(names)) {
      const bool is_ours = set.name.starts_with("shard-");  // of UniShard, without its manifest
      if (set.kind != PartKind::Shards || set.expected() < 2 || is_ours) continue;
      return fmt::format(
          "one model in {} numbered files ({}), which UniShard joins for safetensors and "
          "torch.save "
          "only: put them together with the program that wrote them, for example "
          "llama-gguf-split --merge",
          set.expected(), set.name);
    }
    return std::nullopt;
  }

  Storage& storage_;
  int listings_ = 0;
};

}  // namespace

std::vector<UnjoinedParts> unjoined_parts() {
  std::vector<UnjoinedParts> parts;
  for (const Advice& advice : kAdvice) {
    if (!advice.files.empty()) parts.push_back({advice.what, advice.files});
  }
  parts.push_back({kUnknown.what, kUnknown.files});
  return parts;
}

std::optional<std::string> describe_unjoined_parts(Storage& storage, const Path& folder) {
  if (storage.kind(folder) != EntryKind::Directory) return std::nullopt;
  const Path named = folder.has_filename() ? folder : folder.parent_path();
  return Search(storage).in(named, {}, kSearchDepth);
}

}  // namespace unishard::converters
