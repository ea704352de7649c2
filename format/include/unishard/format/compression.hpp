#pragma once
// How a save stores its payload.
// Thread safety: values and pure functions.
#include <cstdint>
#include <optional>
#include <string_view>

namespace unishard {

struct Compression {
  enum class Mode : std::uint8_t {
    None,  ///< bytes as they are in memory
    Zstd,  ///< byte planes, then zstd, chunk by chunk; a chunk that does not shrink is stored as it
           ///< is
    Auto,  ///< Zstd while measured to be faster than writing the bytes uncompressed
  };
  Mode mode = Mode::None;
  /// 0: entropy coding alone, about twice as fast as zstd's level 1 and within 2 percentage points
  /// of its ratio on weights and moments. 1 to kMaxLevel: zstd's levels.
  int level = 0;

  static constexpr int kMaxLevel = 19;
  bool operator==(const Compression&) const = default;
};

/// Reads "none", "zstd", "auto", or one of the latter two with a level ("zstd:3"); nullopt for
/// anything else.
std::optional<Compression> compression_from_name(std::string_view name);

}  // namespace unishard
