#include "unishard/format/compression.hpp"

#include <charconv>

namespace unishard {

std::optional<Compression> compression_from_name(std::string_view name) {
  if (name == "none") return Compression{};
  const std::string_view mode = name.substr(0, name.find(':'));
  Compression compression;
  if (mode == "zstd") {
    compression.mode = Compression::Mode::Zstd;
  } else if (mode == "auto") {
    compression.mode = Compression::Mode::Auto;
  } else {
    return std::nullopt;
  }
  if (mode.size() == name.size()) return compression;
  const std::string_view level = name.substr(mode.size() + 1);
  const auto [end, error] =
      std::from_chars(level.data(), level.data() + level.size(), compression.level);
  if (error != std::errc{} || end != level.data() + level.size() || compression.level < 1 ||
      compression.level > Compression::kMaxLevel)
    return std::nullopt;
  return compression;
}

}  // namespace unishard
