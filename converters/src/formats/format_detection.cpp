#include "formats/format_detection.hpp"

#include "unishard/format/checkpoint_folder.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/manifest.hpp"
#include "unishard/format/staging_names.hpp"

#include "containers/git_lfs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace unishard::converters {
namespace {

/// A file name that identifies a format. `prefix` and `suffix` must both match.
struct Sign {
  std::string_view prefix, suffix, format, text;
};

constexpr std::array<Sign, 4> kSigns = {{
    {"", "_optim_states.pt", "deepspeed",
     "a part of a DeepSpeed checkpoint without its model file"},
    {"", ".pt", "torch", "a folder of torch.save files: name one of them"},
    {"", ".pth", "torch", "a folder of torch.save files: name one of them"},
    {"", ".bin", "torch", "a folder of torch.save files: name one of them"},
}};

std::optional<ForeignFormat> recognise_names(const std::vector<Entry>& entries) {
  for (const Sign& sign : kSigns) {
    for (const Entry& entry : entries) {
      if (entry.name.starts_with(sign.prefix) && entry.name.ends_with(sign.suffix)) {
        return ForeignFormat{std::string(sign.format), fmt::format("{} (it holds {})", sign.text,
                                                                   unishard::quote(entry.name))};
      }
    }
  }
  return std::nullopt;
}

std::optional<ForeignFormat> recognise_file(Storage& storage, const Path& path) {
  const std::unique_ptr<File> file = storage.open(path);
  std::array<char, 8> head{};
  const std::size_t size = std::min<std::uint64_t>(file->size(), head.size());
  file->read_at(0, std::as_writable_bytes(std::span(head).first(size)));
  const std::string_view text(head.data(), size);
  if (text == kGitLfsStart) return ForeignFormat{"git-lfs", std::string(kGitLfsPointer)};
  return std::nullopt;
}

}  // namespace

std::optional<ForeignFormat> recognise_foreign(Storage& storage, const Path& path) {
  if (storage.kind(path) == EntryKind::File) return recognise_file(storage, path);
  if (storage.kind(path) != EntryKind::Directory) return std::nullopt;
  const std::vector<Entry> entries = storage.list(path);
  if (auto found = recognise_names(entries)) return found;
  for (const Entry& entry : entries) {
    if (entry.kind != EntryKind::Directory || is_leftover(entry.name)) continue;
    if (auto found = recognise_names(storage.list(path / entry.name))) return found;
  }
  return std::nullopt;
}

std::string explain_unknown(Storage& storage, const Path& path) {
  const std::string name = path.string();
  const EntryKind kind = storage.kind(path);
  if (kind == EntryKind::Missing) return fmt::format("{} does not exist", name);
  if (kind == EntryKind::Other) return fmt::format("{} is neither a file nor a folder", name);
  if (kind == EntryKind::File) {
    if (path.filename() == kManifestFile || path.filename() == kLatestFile) {
      return fmt::format("{} is a part of a checkpoint: name its folder instead", name);
    }
    return fmt::format(
        "{} is in no known format (known: checkpoints of UniShard, DeepSpeed and DCP, torch.save "
        "files, HDF5 files, *.safetensors)",
        name);
  }
  if (is_partial_name(path.filename().string())) {
    return fmt::format("{} is the unfinished work of an interrupted save", name);
  }
  const std::vector<Entry> entries = storage.list(path);
  if (entries.empty()) return fmt::format("{} is an empty folder", name);
  const auto is_partial = [](const Entry& entry) { return is_partial_name(entry.name); };
  if (std::all_of(entries.begin(), entries.end(), is_partial)) {
    return fmt::format("{} holds only interrupted saves ({}): no save was ever completed there",
                       name, unishard::quote(entries.front().name));
  }
  const auto is_shard = [](const Entry& entry) {
    return entry.name.starts_with("shard-") && entry.name.ends_with(".h5");
  };
  if (std::any_of(entries.begin(), entries.end(), is_shard)) {
    return fmt::format("{} holds shards and no manifest.json: it is not a complete checkpoint",
                       name);
  }
  return fmt::format(
      "{} holds no checkpoint (expected a folder with {} and tags, a tag with {}, or "
      "*.safetensors)",
      name, kLatestFile, kManifestFile);
}

}  // namespace unishard::converters
