#pragma once
// Folders of several files: the first input byte chooses the file that the rest of the input
// replaces; the other files are those of a sound checkpoint, which the target writes when it
// starts.
#include "fuzz.hpp"
#include "memory_storage.hpp"

#include <functional>
#include <iterator>

namespace unishard::fuzz {

inline int fuzz_folder(const test::MemoryStorage& sound, const Path& folder,
                       const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  return expect_error_or_success([&] {
    test::MemoryStorage storage = sound;
    const auto file = std::next(storage.files.begin(),
                                static_cast<std::ptrdiff_t>(data[0] % storage.files.size()));
    storage.put(file->first, std::string(reinterpret_cast<const char*>(data + 1), size - 1));
    read_ends(*converters::open_source(storage, folder));
  });
}

}  // namespace unishard::fuzz
