#pragma once
// The version of the on-disk format, independent of the library's version. See format/SPEC.md.
#include <cstdint>
#include <string_view>

namespace unishard {

inline constexpr std::string_view kFormatName = "unishard";
inline constexpr std::uint32_t kFormatVersion = 1;          ///< written
inline constexpr std::uint32_t kOldestReadableVersion = 1;  ///< read
/// The required features so far, in a manifest and in a shard's header: compressed data sets, and
/// chunks that lie in files of earlier saves.
inline constexpr std::string_view kZstdFeature = "zstd";
inline constexpr std::uint32_t kZstdFeatureBit = 1;
inline constexpr std::string_view kSharedFeature = "shared";
inline constexpr std::uint32_t kSharedFeatureBit = 2;
inline constexpr std::string_view kLibraryVersion = "0.1.0";

}  // namespace unishard
