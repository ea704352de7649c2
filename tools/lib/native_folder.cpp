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
  if (found.format == "unishard") return;
  if (!found.format.empty()) {
    raise(ErrorCode::Unsupported, fmt::format("{} is in the format {}; this verb works on unishard "
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

}  // namespace unishard::tools
