#include "formats/torch/weight_index.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include "core/numbered_shards.hpp"

#include <fmt/format.h>

#include <cstdint>

namespace unishard::converters::torch {

std::map<std::string, std::set<std::string>> read_weight_index(Storage& storage, const Path& path) {
  constexpr std::uint64_t kIndexBytes = std::uint64_t{256} << 20;
  const SortedJson index = parse_sorted_json(read_text(storage, path, kIndexBytes), path.string());
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    raise(ErrorCode::Corrupt, fmt::format("{}: no object weight_map", path.string()));
  }
  std::map<std::string, std::set<std::string>> shards;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    if (!shard.is_string())
      raise(ErrorCode::Corrupt, fmt::format("{}: weight_map of {} is not a file name",
                                            path.string(), unishard::quote(name)));
    const auto file = shard.get<std::string>();
    if (file.empty() || file.starts_with('.') || file.find_first_of("/\\") != std::string::npos) {
      raise(ErrorCode::Corrupt,
            fmt::format("{}: {} is not a plain file name", path.string(), unishard::quote(file)));
    }
    shards[file].insert(name);
  }
  std::vector<std::string> files;
  for (const auto& [file, names] : shards) files.push_back(file);
  const std::string missing = files.empty() ? "it names no file" : missing_shard(files);
  if (!missing.empty())
    raise(ErrorCode::Corrupt, fmt::format("{}: weight_map: {}", path.string(), missing));
  return shards;
}

}  // namespace unishard::converters::torch
