// A GGUF file.
#include "formats/gguf/reader.hpp"
#include "fuzz.hpp"
#include "memory_storage.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return unishard::fuzz::expect_error_or_success([&] {
    unishard::test::MemoryStorage storage;
    storage.put("model.gguf", std::string(reinterpret_cast<const char*>(data), size));
    unishard::fuzz::read_ends(*unishard::converters::open_gguf(storage, "model.gguf"));
  });
}
