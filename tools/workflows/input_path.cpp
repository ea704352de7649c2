#include "workflows/input_path.hpp"

#include "unishard/converters/source.hpp"

#include "workflows/hub_cache.hpp"

namespace unishard::tools {

std::string find_input(Storage& storage, const std::string& name) {
  std::string path = find_in_hub_cache(storage, name);
  if (storage.kind(path) != EntryKind::Directory) return path;
  const auto within = converters::find_within_accelerate(storage, path);
  return within ? within->string() : path;
}

}  // namespace unishard::tools
