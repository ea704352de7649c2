// A DCP folder of two ranks: .metadata and .distcp files.
#include "folder_fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const unishard::test::MemoryStorage sound = unishard::fuzz::sound_folder(
      [](unishard::Storage& storage, const unishard::Catalog& catalog) {
        return unishard::converters::make_dcp_sink(storage, "c", catalog);
      });
  return unishard::fuzz::fuzz_folder(sound, "c", data, size);
}
