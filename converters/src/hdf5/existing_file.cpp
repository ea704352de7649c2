#include "hdf5/existing_file.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/version.hpp"

#include "hdf5/directory_text.hpp"
#include "hdf5/element_types.hpp"
#include "hdf5/hyperslabs.hpp"
#include "hdf5/own_process.hpp"
#include "hdf5/strings.hpp"

#include <fmt/format.h>

#include <cstring>

namespace unishard::converters::hdf5 {
namespace {

using detail::Hdf5Handle;

constexpr std::size_t kChunkSlots = 10007;  // prime, as HDF5 asks

Hdf5Handle open_file(const Path& path) {
  Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  if (file >= 0) return file;
  raise(ErrorCode::Corrupt,
        fmt::format("{}: HDF5 cannot open it: {}", path.string(), detail::hdf5_reasons()),
        "h5dump -H says whether other programs can read it");
}

void refuse_native(hid_t file, const Path& path) {
  if (text_attribute(file, "format") != kFormatName) return;
  raise(ErrorCode::Unsupported,
        fmt::format("{} is one shard of a UniShard checkpoint", path.string()),
        "name the checkpoint's folder, which holds manifest.json");
}

/// One data set, open to read elements of it.
class Reader {
 public:
  Reader(const Path& path, const ListedTensor& tensor)
      : where_(fmt::format("{}: {}", path.string(), unishard::quote("/" + tensor.path))),
        stored_(tensor.stored),
        file_(open_file(path)),
        data_set_(open_data_set(tensor.path)),
        file_type_(H5Dget_type(data_set_), H5Tclose),
        type_(memory_type(file_type_, stored_.dtype)),
        space_(H5Dget_space(data_set_), H5Sclose) {}

  void read(ElementRange range, char* out) const {
    if (stored_.shape.empty()) return read_selected(1, out);
    for (const Hyperslab& slab : split_range(stored_.shape, range)) {
      const std::vector<hsize_t> start(slab.start.begin(), slab.start.end());
      const std::vector<hsize_t> count(slab.count.begin(), slab.count.end());
      if (H5Sselect_hyperslab(space_, H5S_SELECT_SET, start.data(), nullptr, count.data(),
                              nullptr) < 0) {
        fail("select elements");
      }
      const std::uint64_t elements = element_count(slab.count);
      read_selected(elements, out);
      out += elements * size_of(stored_.dtype);
    }
  }

 private:
  [[noreturn]] void fail(std::string_view action) const {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: HDF5 failed to {}: {}", where_, action, detail::hdf5_reasons()));
  }

  Hdf5Handle open_data_set(const std::string& path) const {
    const Hdf5Handle access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose);
    if (stored_.cache_bytes > 0)
      H5Pset_chunk_cache(access, kChunkSlots, stored_.cache_bytes, H5D_CHUNK_CACHE_W0_DEFAULT);
    Hdf5Handle data_set(H5Dopen2(file_, path.c_str(), access), H5Dclose);
    if (data_set < 0) fail("open it");
    return data_set;
  }

  void read_selected(std::uint64_t elements, char* out) const {
    const hsize_t count = elements;
    const Hdf5Handle memory(H5Screate_simple(1, &count, nullptr), H5Sclose);
    if (H5Dread(data_set_, type_, memory, space_, H5P_DEFAULT, out) < 0) fail("read it");
  }

  const std::string where_;
  const StoredTensor& stored_;
  const Hdf5Handle file_;
  const Hdf5Handle data_set_;
  const Hdf5Handle file_type_;
  const Hdf5Handle type_;  ///< in memory
  const Hdf5Handle space_;
};

}  // namespace

Directory list_existing(const Path& path, std::uint64_t file_bytes) {
  const std::string text = in_own_process(path.string(), [&] {
    const Hdf5Handle file = open_file(path);
    refuse_native(file, path);
    return encode_directory(list_file(file, file_bytes, path.string()));
  });
  return decode_directory(text, path.string());
}

void read_existing(const Path& path, const ListedTensor& tensor, ElementRange range,
                   std::span<std::byte> out) {
  const std::string what = fmt::format("{}: {}", path.string(), unishard::quote("/" + tensor.path));
  const std::string bytes = in_own_process(what, [&] {
    std::string buffer(out.size(), '\0');
    Reader(path, tensor).read(range, buffer.data());
    return buffer;
  });
  if (bytes.size() != out.size()) raise(ErrorCode::Internal, what + ": too few bytes came");
  std::memcpy(out.data(), bytes.data(), bytes.size());
}

}  // namespace unishard::converters::hdf5
