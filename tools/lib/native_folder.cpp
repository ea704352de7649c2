#include "lib/native_folder.hpp"

#include "unishard/converters/source.hpp"
#include "unishard/format/checkpoint.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>

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
  raise(storage.kind(path) == EntryKind::Missing ? ErrorCode::NotFound : ErrorCode::Unsupported,
        found.problem);
}

Path native_checkpoint(Storage& storage, const Path& path, const std::optional<std::string>& tag) {
  require_native(storage, path);
  return resolve_checkpoint(storage, without_trailing_slash(path), tag);
}

std::optional<std::string> tag_of(Storage& storage, const Path& path,
                                  const std::optional<std::string>& tag) {
  if (tag) return tag;
  constexpr std::uint64_t kLatestBytes = 4096;
  for (const std::string_view name : {"latest", "latest_universal"}) {
    if (storage.kind(path / name) == EntryKind::File) {
      std::string text = read_text(storage, path / name, kLatestBytes);
      text.erase(text.find_last_not_of(" \r\n") + 1);
      return text;
    }
    const Path folder = absolute_folder(path);
    if (storage.kind(folder.parent_path() / name) == EntryKind::File)
      return folder.filename().string();
  }
  return std::nullopt;
}

}  // namespace unishard::tools
