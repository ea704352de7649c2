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
enum class ZipMethod { Stored, Deflated };
/// Returns a zip archive with correct sizes, offsets and CRC-32s, contents at multiples of 64.
std::string zip_of(const ZipFiles& files, ZipMethod method = ZipMethod::Stored);
/// Returns the entries of an archive; empty when it is none or has an entry above 1 MiB.
ZipFiles files_of(std::string_view zip);

/// Changes the pickle of a torch.save archive, or removes, cuts or lengthens an entry; empty when
/// `zip` is no such archive.
std::string mutate_torch_file(std::string_view zip, std::uint64_t seed);

/// Changes, cuts or removes one entry of an archive of arrays: its text of sizes and types, or any
/// bytes. Empty when `zip` is no archive.
std::string mutate_arrays(std::string_view zip, std::uint64_t seed);

/// Changes, cuts or removes one file of a folder that is given as a zip archive. Pickles, JSON
/// files and torch.save files are changed by the functions above. Empty when `zip` is none.
std::string mutate_folder(std::string_view zip, std::uint64_t seed);

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
