#include "checkpoint/stream_copy.hpp"

#include <cstring>

#ifdef __x86_64__
#include <emmintrin.h>
#endif

namespace unishard::trainer::detail {

#ifdef __x86_64__

void stream_copy(std::byte* to, std::span<const std::byte> from) {
  constexpr std::size_t kVector = sizeof(__m128i), kLine = 4 * kVector;
  const std::size_t whole = from.size() / kLine * kLine;
  for (std::size_t at = 0; at < whole; at += kLine) {
    for (std::size_t part = at; part < at + kLine; part += kVector) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + part),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from.data() + part)));
    }
  }
  _mm_sfence();  // makes the bytes visible to other threads before this one reports completion
  std::memcpy(to + whole, from.data() + whole, from.size() - whole);
}

#else

void stream_copy(std::byte* to, std::span<const std::byte> from) {
  std::memcpy(to, from.data(), from.size());
}

#endif

}  // namespace unishard::trainer::detail
