#pragma once
// Version of the on-disk format, which is independent of the version of the library. See
// format/SPEC.md.
#include <cstdint>
#include <string_view>

namespace unishard {

inline constexpr std::string_view kFormatName = "unishard";
inline constexpr std::uint32_t kFormatVersion = 1;          ///< version that writers write
inline constexpr std::uint32_t kOldestReadableVersion = 1;  ///< oldest version that readers accept
/// Required features, as names in a manifest and as bits in a shard's header: "zstd" for compressed
/// data sets, "shared" for chunks that lie in files of earlier saves, "boxes" for fragments that
/// are boxes.
inline constexpr std::string_view kZstdFeature = "zstd";
inline constexpr std::uint32_t kZstdFeatureBit = 1;
inline constexpr std::string_view kSharedFeature = "shared";
inline constexpr std::uint32_t kSharedFeatureBit = 2;
inline constexpr std::string_view kBoxesFeature = "boxes";
inline constexpr std::uint32_t kBoxesFeatureBit = 4;
inline constexpr std::string_view kLibraryVersion = "0.1.0";

}  // namespace unishard
