#pragma once
// Shared parts of all fuzz targets. A target fails by a crash, a sanitizer's report, an exception
// other than unishard::Error, or libFuzzer's time or memory limit. An unishard::Error is an
// expected outcome.
#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace unishard::fuzz {

/// Reads the first and the last elements of every tensor.
inline void read_ends(const converters::Source& source) {
  constexpr std::uint64_t kElements = 64;
  for (std::size_t i = 0; i < source.catalog().tensors.size(); ++i) {
    const TensorInfo& tensor = source.catalog().tensors[i];
    const std::uint64_t elements = tensor.elements(), count = std::min(elements, kElements);
    std::vector<std::byte> bytes(count * size_of(tensor.dtype));
    source.read(i, {0, count}, bytes);
    source.read(i, {elements - count, elements}, bytes);
  }
}

/// Ends the program, which libFuzzer reports as a finding, unless `holds`.
inline void require(bool holds, const char* property) {
  if (holds) return;
  std::fprintf(stderr, "property violated: %s\n", property);
  std::abort();
}

/// Calls `body` and accepts an Error.
template <class Body>
int expect_error_or_success(Body&& body) {
  try {
    body();
  } catch (const Error&) {
  }
  return 0;
}

}  // namespace unishard::fuzz
