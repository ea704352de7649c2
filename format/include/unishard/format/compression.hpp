#pragma once
// How a save stores its payload. Values and pure functions; any thread.
#include <cstdint>
#include <optional>
#include <string_view>

namespace unishard {

struct Compression {
  enum class Mode : std::uint8_t {
    None,  ///< as it is in memory
    Zstd,  ///< byte planes, then zstd, chunk by chunk; a chunk that does not shrink stays as it is
    Auto,  ///< Zstd while that is faster than writing the bytes as they are, judged while writing
  };
  Mode mode = Mode::None;
  /// 0: entropy coding alone, about twice as fast as zstd's level 1 and as small on weights and
  /// moments. 1 to kMaxLevel: zstd's levels.
  int level = 0;

  static constexpr int kMaxLevel = 19;
  bool operator==(const Compression&) const = default;
};

/// "none", "zstd", "auto", or the last two with a level: "zstd:3". nullopt for anything else.
std::optional<Compression> compression_from_name(std::string_view name);

}  // namespace unishard
