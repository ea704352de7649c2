#pragma once
// Fuzzes folders of several files: the first input byte selects the file that the rest of the input
// replaces. The other files are those of a sound checkpoint, which the target writes at its start.
#include "unishard/converters/sink.hpp"

#include "fuzz.hpp"
#include "make_checkpoint.hpp"
#include "memory_storage.hpp"

#include <functional>
#include <iterator>

namespace unishard::fuzz {

/// A sound checkpoint of two ranks in a folder "c", by the sink that `make(storage, catalog)`
/// gives.
template <class Make>
test::MemoryStorage sound_folder(const Make& make) {
  test::MemoryStorage storage;
  const Catalog catalog = test::example_catalog({.world_size = 2, .stage = 2});
  const std::unique_ptr<converters::Sink> sink = make(storage, catalog);
  for (std::size_t i = 0; i < sink->fragments().size(); ++i) {
    const Fragment& fragment = sink->fragments()[i];
    sink->write(i, fragment.range,
                test::example_bytes(catalog, fragment.tensor, 1, fragment.range));
  }
  sink->commit();
  return storage;
}

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
