// A DeepSpeed folder of two ranks.
#include "folder_fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const unishard::test::MemoryStorage sound = unishard::fuzz::sound_folder(
      [](unishard::Storage& storage, const unishard::Catalog& catalog) {
        return unishard::converters::make_deepspeed_sink(storage, "c", "tag", catalog);
      });
  return unishard::fuzz::fuzz_folder(sound, "c", data, size);
}
