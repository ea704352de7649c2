// A checkpoint folder of several files, DeepSpeed's or DCP's: that depends on the seeds. The input
// is a zip archive of the folder, its name included.
#include "fuzz.hpp"
#include "memory_storage.hpp"
#include "mutators.hpp"

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  return unishard::fuzz::mutate_half(data, size, max_size, seed, [&](std::string_view zip) {
    return unishard::fuzz::mutate_folder(zip, seed);
  });
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const unishard::fuzz::ZipFiles files =
      unishard::fuzz::files_of({reinterpret_cast<const char*>(data), size});
  if (files.empty()) return 0;
  unishard::test::MemoryStorage storage;
  for (const auto& [name, bytes] : files) storage.put(name, bytes);
  const std::string& any = files.front().first;
  return unishard::fuzz::expect_error_or_success([&] {
    const auto source = unishard::converters::open_source(storage, any.substr(0, any.find('/')));
    unishard::fuzz::read_ends(*source);
    source->verify_reads({.threads = 1});
  });
}
