#include "formats/dcp/copied_files.hpp"

#include "unishard/format/error.hpp"

#include "containers/equal_elements.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>

namespace unishard::converters::dcp {
namespace {

/// A part of a tensor in a data file.
struct StoredPart {
  std::uint32_t item = 0;
  std::uint64_t bytes = 0;
};

struct DataFile {
  std::shared_ptr<const File> file;
  std::vector<StoredPart> parts;
  bool has_pieces = false;  ///< holds a part that is not a whole tensor

  /// Whether another file can only be equal by chance.
  bool is_distinct() const { return has_pieces || parts.size() > 1; }
};

std::vector<DataFile> data_files(const StateDict& state) {
  std::vector<DataFile> files;
  std::unordered_map<const File*, std::size_t> numbers;
  for (const TensorEntry& tensor : state.tensors) {
    for (const Chunk& chunk : tensor.chunks) {
      const std::shared_ptr<const File>& file = state.items->window(chunk.item).file;
      if (!file || chunk.box.elements() == 0) continue;
      const auto [at, is_new] = numbers.try_emplace(file.get(), files.size());
      if (is_new) files.push_back({file, {}});
      DataFile& found = files[at->second];
      found.parts.push_back({chunk.item, chunk.box.elements() * size_of(tensor.dtype)});
      found.has_pieces |= chunk.box.sizes != tensor.shape;
    }
  }
  return files;
}

/// Returns bytes from four places of a file.
std::vector<std::byte> sample_of(const File& file) {
  constexpr std::uint64_t kPlaces = 4, kBytes = 64;
  const std::uint64_t size = file.size(), step = size / kPlaces;
  std::vector<std::byte> sample(std::min(size, kPlaces * kBytes));
  for (std::uint64_t place = 0; place < kPlaces && step >= kBytes; ++place) {
    file.read_at(place * step + step / 2,
                 std::span(sample).subspan(place * kBytes, std::min(kBytes, step - step / 2)));
  }
  return sample;
}

bool has_one_value_each(const DataFile& file, const Items& items) {
  return std::ranges::all_of(file.parts, [&](const StoredPart& part) {
    return has_one_value(*items.tensor(part.item, part.bytes));
  });
}

bool is_copy(const DataFile& file, const DataFile& other, const Items& items) {
  return equal_bytes(*file.file, 0, *other.file, 0, file.file->size()) &&
         !has_one_value_each(file, items);
}

}  // namespace

std::vector<std::string> doubts_about_copied_files(const StateDict& state) {
  const std::vector<DataFile> files = data_files(state);
  std::multimap<std::pair<std::uint64_t, std::vector<std::byte>>, const DataFile*> known;
  std::vector<std::string> lines;
  for (const DataFile& file : files) {
    if (!file.is_distinct()) continue;
    try {
      auto key = std::pair(file.file->size(), sample_of(*file.file));
      const auto [begin, end] = known.equal_range(key);
      const auto other = std::find_if(
          begin, end, [&](const auto& each) { return is_copy(file, *each.second, *state.items); });
      if (other != end)
        lines.push_back(fmt::format(
            "{} has the bytes of {}, although they are of other parts of the tensors: "
            "one is a copy of the other. Copy the file again from the node that wrote it",
            file.file->path().string(), other->second->file->path().string()));
      known.emplace(std::move(key), &file);
    } catch (const Error&) {
      continue;  // reading its tensors says what is wrong with the file
    }
  }
  return lines;
}

}  // namespace unishard::converters::dcp
