// A whole torch.save file: container, pickle, tensors.
#include "fuzz.hpp"
#include "memory_storage.hpp"
#include "torch/torch_source.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return unishard::fuzz::expect_error_or_success([&] {
    unishard::test::MemoryStorage storage;
    storage.put("model.pt", std::string(reinterpret_cast<const char*>(data), size));
    if (!unishard::converters::is_torch(storage, "model.pt")) return;
    unishard::fuzz::read_ends(*unishard::converters::open_torch(storage, "model.pt"));
  });
}
