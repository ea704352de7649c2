// A DeepSpeed folder of two ranks.
#include "unishard/converters/sink.hpp"

#include "folder_fuzz.hpp"
#include "make_checkpoint.hpp"

namespace {

unishard::test::MemoryStorage sound_folder() {
  unishard::test::MemoryStorage storage;
  unishard::Catalog catalog = unishard::test::example_catalog({.world_size = 2, .stage = 2});
  const auto sink = unishard::converters::make_deepspeed_sink(storage, "c", "tag", catalog);
  for (std::size_t i = 0; i < sink->fragments().size(); ++i) {
    const unishard::Fragment& fragment = sink->fragments()[i];
    sink->write(i, fragment.range,
                unishard::test::example_bytes(catalog, fragment.tensor, 1, fragment.range));
  }
  sink->commit();
  return storage;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const unishard::test::MemoryStorage sound = sound_folder();
  return unishard::fuzz::fuzz_folder(sound, "c", data, size);
}
