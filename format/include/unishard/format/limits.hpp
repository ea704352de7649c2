#pragma once
// Limits on what a file may claim. Readers check them before they allocate memory and throw Corrupt
// when one is exceeded.
#include <cstdint>

namespace unishard::limits {

inline constexpr std::uint64_t kManifestBytes = std::uint64_t{1} << 30;
inline constexpr std::uint64_t kTensors = 10'000'000;
inline constexpr std::uint64_t kNameBytes = 4096;
inline constexpr std::uint64_t kStateNameBytes = 64;
inline constexpr std::uint64_t kTagBytes = 200;
/// A JSON number that every reader holds exactly, also one that computes in double precision.
inline constexpr std::uint64_t kCommitNumber = std::uint64_t{1} << 53;
inline constexpr std::uint64_t kDimensions = 64;
inline constexpr std::uint32_t kWorldSize = 1u << 20;
inline constexpr std::uint64_t kDataSetsPerShard = 4096;
inline constexpr std::uint64_t kBasesPerShard = 255;
inline constexpr std::uint64_t kIndexRows = 100'000'000;
/// Bytes of the table of boxes of one shard.
inline constexpr std::uint64_t kBoxesBytes = std::uint64_t{1} << 30;
inline constexpr std::uint64_t kChunkBytesMin = 4096;
inline constexpr std::uint64_t kChunkBytesMax = std::uint64_t{1} << 30;
/// Largest chunk of a compressed data set. It is smaller than kChunkBytesMax because a few stored
/// bytes may stand for a whole chunk.
inline constexpr std::uint64_t kEncodedChunkBytesMax = std::uint64_t{64} << 20;
/// Bytes of one shard outside its payload.
inline constexpr std::uint64_t kMetadataBytes = std::uint64_t{8} << 30;

}  // namespace unishard::limits

namespace unishard {

/// The payload of a data set begins at a multiple of this many bytes in its file and occupies a
/// multiple of it.
inline constexpr std::uint64_t kPayloadAlign = 4096;

}  // namespace unishard
