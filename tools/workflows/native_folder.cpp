#include "workflows/native_folder.hpp"

#include "unishard/converters/like_source.hpp"
#include "unishard/converters/source.hpp"
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace unishard::tools {

Path without_trailing_slash(const Path& path) {
  return path.has_filename() || !path.has_relative_path() ? path : path.parent_path();
}

Path absolute_folder(const Path& path) {
  return without_trailing_slash(std::filesystem::absolute(path).lexically_normal());
}

void require_native(Storage& storage, const Path& path) {
  const converters::Probe found = converters::probe(storage, path);
  if (found.format == "native") return;
  if (!found.format.empty()) {
    raise(ErrorCode::Unsupported, fmt::format("{} is in the format {}; this verb works on native "
                                              "checkpoints",
                                              path.string(), found.format));
  }
  raise(found.code, found.problem);
}

std::unique_ptr<CheckpointReader> open_native_checkpoint(Storage& storage, const Path& path,
                                                         const std::optional<std::string>& tag) {
  require_native(storage, path);
  return open_checkpoint(storage, without_trailing_slash(path), tag);
}

void require_outside_checkpoints(Storage& storage, const Path& output, bool is_folder_of_tags) {
  const auto holds_checkpoint = [&](const Path& folder) {
    constexpr std::array<std::string_view, 6> kNames = {
        kManifestFile,  ".metadata",     "mp_rank_00_model_states.pt",
        "optimizer.pt", "optimizer.bin", "zero_pp_rank_0_mp_rank_00_model_states.pt"};
    return std::ranges::any_of(
        kNames, [&](auto name) { return storage.kind(folder / name) == EntryKind::File; });
  };
  std::error_code code;
  Path folder = std::filesystem::weakly_canonical(without_trailing_slash(output), code);
  if (code) folder = absolute_folder(output);
  if (!is_folder_of_tags) folder = folder.parent_path();
  for (; folder.has_relative_path(); folder = folder.parent_path()) {
    if (!holds_checkpoint(folder)) continue;
    raise(ErrorCode::InvalidArgument,
          fmt::format("the output {} lies inside the checkpoint {}", output.string(),
                      folder.string()),
          "choose an output beside it; nothing was written");
  }
}

void require_outside_model(const converters::Source& source, const Path& output) {
  const Path input = absolute_folder(source.path());
  const bool is_model = source.format() == "safetensors" || source.format() == "torch";
  if (!is_model || posix_storage().kind(input) != EntryKind::Directory) return;
  std::error_code code;
  const Path model = std::filesystem::weakly_canonical(input, code);
  Path folder = std::filesystem::weakly_canonical(without_trailing_slash(output), code);
  while (folder.has_relative_path() && folder != model) folder = folder.parent_path();
  if (code || folder != model) return;
  raise(ErrorCode::InvalidArgument,
        fmt::format("the output {} lies inside the model's folder {}", output.string(),
                    input.string()),
        "choose an output beside it; nothing was written");
}

std::optional<std::string> tag_of(Storage& storage, const Path& path,
                                  const std::optional<std::string>& tag) {
  if (tag) return tag;
  constexpr std::uint64_t kLatestBytes = 4096;
  for (const std::string_view name : {"latest", "latest_universal"}) {
    if (storage.kind(path / name) == EntryKind::File) {
      constexpr const char* kSpace = " \t\r\n";  // which DeepSpeed strips too
      std::string text = read_text(storage, path / name, kLatestBytes);
      text.erase(text.find_last_not_of(kSpace) + 1);
      text.erase(0, std::min(text.find_first_not_of(kSpace), text.size()));
      return text;
    }
    const Path folder = absolute_folder(path);
    if (storage.kind(folder.parent_path() / name) == EntryKind::File)
      return folder.filename().string();
  }
  return std::nullopt;
}

TaggedSource open_tagged(Storage& storage, const Path& path, const converters::OpenOptions& options,
                         const std::string& like) {
  const std::optional<std::string>& tag = options.tag;
  if (const auto numbered = converters::find_numbered_checkpoint(storage, path, tag)) {
    converters::OpenOptions within = options;
    within.tag.reset();
    return open_tagged(storage, *numbered, within, like);
  }
  constexpr int kTries = 20;
  TaggedSource opened;
  for (int i = 0; i < kTries; ++i) {
    opened.tag = tag_of(storage, path, tag).value_or("");
    opened.source = like.empty() ? converters::open_source(storage, path, options)
                                 : converters::open_source_like(storage, path, like, options);
    if (tag_of(storage, path, tag).value_or("") == opened.tag) break;
  }
  return opened;
}

void require_whole(const converters::Source& source) {
  if (!source.part_of()) return;
  raise(ErrorCode::Unsupported, fmt::format("{} is {}", source.path().string(), *source.part_of()),
        "name the folder that holds all parts; --part takes this file alone");
}

}  // namespace unishard::tools
