#pragma once
// Digests of parts of fragments, from which the digests of chunks, fragments and tensors follow.
// SPEC.md, section "Checksums", defines the contribution of a fragment to its tensor's digest.
// Thread safety: pure functions.
#include "unishard/format/box.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace unishard {

struct FragmentDigest {
  std::uint64_t crc64 = 0;  ///< of the bytes
  /// What the part adds by xor to the CRC-64 of its tensor.
  std::uint64_t contribution = 0;
};

/// Digests `bytes`, the own elements `own` of a fragment, of `width` bytes each, of a tensor of
/// `tensor_elements` elements. Reads the bytes once.
FragmentDigest digest_elements(const ElementMap& map, std::uint64_t tensor_elements,
                               std::uint64_t width, ElementRange own,
                               std::span<const std::byte> bytes);

}  // namespace unishard
