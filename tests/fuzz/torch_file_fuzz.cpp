// A whole torch.save file: container, pickle, tensors. Half of the mutations change the contents of
// the archive, and write it anew with right sizes, offsets and checksums.
#include "formats/torch/reader.hpp"
#include "fuzz.hpp"
#include "memory_storage.hpp"
#include "mutators.hpp"

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  return unishard::fuzz::mutate_half(data, size, max_size, seed, [&](std::string_view zip) {
    return unishard::fuzz::mutate_torch_file(zip, seed);
  });
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return unishard::fuzz::expect_error_or_success([&] {
    unishard::test::MemoryStorage storage;
    storage.put("model.pt", std::string(reinterpret_cast<const char*>(data), size));
    if (!unishard::converters::is_torch(storage, "model.pt")) return;
    unishard::fuzz::read_ends(*unishard::converters::open_torch(storage, "model.pt"));
  });
}
