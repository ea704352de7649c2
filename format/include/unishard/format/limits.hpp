#pragma once
// Caps on what a file may claim, checked before memory is taken. Exceeding one is Corrupt.
#include <cstdint>

namespace unishard::limits {

inline constexpr std::uint64_t kManifestBytes = std::uint64_t{1} << 30;
inline constexpr std::uint64_t kTensors = 10'000'000;
inline constexpr std::uint64_t kNameBytes = 4096;
inline constexpr std::uint64_t kStateNameBytes = 64;
inline constexpr std::uint64_t kTagBytes = 200;
inline constexpr std::uint64_t kDimensions = 64;
inline constexpr std::uint32_t kWorldSize = 1u << 20;
inline constexpr std::uint64_t kDataSetsPerShard = 4096;
inline constexpr std::uint64_t kBasesPerShard = 255;
inline constexpr std::uint64_t kIndexRows = 100'000'000;
inline constexpr std::uint64_t kChunkBytesMin = 4096;
inline constexpr std::uint64_t kChunkBytesMax = std::uint64_t{1} << 30;
/// Chunks of compressed data sets are smaller: few stored bytes may stand for a whole chunk.
inline constexpr std::uint64_t kEncodedChunkBytesMax = std::uint64_t{64} << 20;
inline constexpr std::uint64_t kMetadataBytes = std::uint64_t{8}
                                                << 30;  ///< of one shard, payload excluded

}  // namespace unishard::limits

namespace unishard {

/// Payload begins at multiples of this in its file, and takes a multiple of it, in bytes.
inline constexpr std::uint64_t kPayloadAlign = 4096;

}  // namespace unishard
