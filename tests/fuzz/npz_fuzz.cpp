// A file of numpy: an archive of arrays, or one array. Half of the mutations change the arrays in
// an archive, and write it anew with right sizes, offsets and checksums.
#include "formats/numpy/reader.hpp"
#include "fuzz.hpp"
#include "memory_storage.hpp"
#include "mutators.hpp"

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  return unishard::fuzz::mutate_half(data, size, max_size, seed, [&](std::string_view zip) {
    return unishard::fuzz::mutate_arrays(zip, seed);
  });
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return unishard::fuzz::expect_error_or_success([&] {
    unishard::test::MemoryStorage storage;
    storage.put("model.npz", std::string(reinterpret_cast<const char*>(data), size));
    const auto source = unishard::converters::open_npz(storage, "model.npz");
    unishard::fuzz::read_ends(*source);
    source->verify_reads({});
  });
}
