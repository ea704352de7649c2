#pragma once
// Mutators that understand the structure of their input, so that more inputs pass the first checks
// of a reader. All are deterministic in `seed`.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// libFuzzer's own mutator.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace unishard::fuzz {

/// Removes, repeats, moves or replaces opcodes with their arguments. Parts that cannot be parsed
/// are unchanged.
std::string mutate_pickle(std::string_view program, std::uint64_t seed);

/// Returns a JSON text with unusual values, and members removed, repeated or moved; empty when
/// `text` is no JSON.
std::string mutate_json(std::string_view text, std::uint64_t seed);

/// Names and contents of a zip archive's entries.
using ZipFiles = std::vector<std::pair<std::string, std::string>>;
/// Returns a zip archive with correct sizes, offsets and CRC-32s, stored, contents at multiples of
/// 64.
std::string zip_of(const ZipFiles& files);
/// Returns the entries of an archive; empty when it is none or is large.
ZipFiles files_of(std::string_view zip);

/// Implements LLVMFuzzerCustomMutator(): every second time `mutate`, if its result fits, else
/// libFuzzer's own mutation.
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
