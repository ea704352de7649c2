#pragma once
// Mutators that know what they change, so that more inputs reach what lies behind the first checks.
// All are deterministic in `seed`.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// libFuzzer's own.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace unishard::fuzz {

/// Opcodes and their arguments: some are removed, repeated, moved or replaced by others; what
/// cannot be parsed stays as it is.
std::string mutate_pickle(std::string_view program, std::uint64_t seed);

/// A JSON text in which values are replaced by odd ones, and members removed, repeated or moved.
/// Empty when `text` is no JSON.
std::string mutate_json(std::string_view text, std::uint64_t seed);

/// Names and contents of a zip archive's entries.
using ZipFiles = std::vector<std::pair<std::string, std::string>>;
/// A zip archive with right sizes, offsets and CRC-32s, stored, contents at multiples of 64.
std::string zip_of(const ZipFiles& files);
/// The entries of an archive; empty when it is none, or is large.
ZipFiles files_of(std::string_view zip);

/// What LLVMFuzzerCustomMutator() returns: every second time what `mutate` makes of the input,
/// where that is something that fits; else libFuzzer's own mutation.
template <class Mutate>
std::size_t mutate_half(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed,
                        const Mutate& mutate) {
  if (size > 0 && seed / 2 % 2 == 0) {
    const std::string made = mutate(std::string_view(reinterpret_cast<const char*>(data), size));
    if (!made.empty() && made.size() <= max_size) {
      std::copy(made.begin(), made.end(), reinterpret_cast<char*>(data));
      return made.size();
    }
  }
  return LLVMFuzzerMutate(data, size, max_size);
}

}  // namespace unishard::fuzz
