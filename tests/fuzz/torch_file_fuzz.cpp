// A whole torch.save file: container, pickle, tensors. Half of the mutations change the contents of
// the archive, and write it anew with right sizes, offsets and checksums.
#include "formats/torch/reader.hpp"
#include "fuzz.hpp"
#include "memory_storage.hpp"
#include "mutators.hpp"

#include <algorithm>

namespace {

std::string with_changed_contents(std::string_view zip, std::uint64_t seed) {
  namespace fuzz = unishard::fuzz;
  fuzz::ZipFiles files = fuzz::files_of(zip);
  const auto pickle = std::ranges::find_if(
      files, [](const auto& file) { return file.first.ends_with("/data.pkl"); });
  if (pickle == files.end()) return {};
  if (seed % 8 != 0) {
    pickle->second = fuzz::mutate_pickle(pickle->second, seed);
  } else if (seed % 16 == 0) {
    files.erase(files.begin() + static_cast<std::ptrdiff_t>(seed / 16 % files.size()));
  } else {
    std::string& bytes = files[seed / 16 % files.size()].second;
    bytes.resize(seed / 64 % (2 * bytes.size() + 1));
  }
  return fuzz::zip_of(files);
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  return unishard::fuzz::mutate_half(data, size, max_size, seed, [&](std::string_view zip) {
    return with_changed_contents(zip, seed);
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
