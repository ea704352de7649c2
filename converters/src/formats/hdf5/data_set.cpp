#include "formats/hdf5/data_set.hpp"

#include "unishard/format/checked.hpp"

#include "formats/hdf5/element_types.hpp"
#include "formats/hdf5/strings.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard::converters::hdf5 {
namespace {

constexpr std::uint64_t kCacheBytes = std::uint64_t{32} << 20;

[[noreturn]] void damaged(const std::string& where, std::string_view problem) {
  raise(ErrorCode::Corrupt, fmt::format("{}: {}", where, problem));
}

/// Returns why the data lies in other files or needs code outside libhdf5. Must be checked before
/// the shape is read, because libhdf5 opens other files for the shape of a virtual data set.
std::optional<std::string> outside_reason(hid_t creation) {
  if (H5Pget_layout(creation) == H5D_VIRTUAL) return "a view of data sets of other files";
  if (H5Pget_external_count(creation) > 0) return "its data lies in another file";
  const int filters = H5Pget_nfilters(creation);
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0;
    std::size_t values = 0;
    const H5Z_filter_t filter = H5Pget_filter2(creation, static_cast<unsigned>(i), &flags, &values,
                                               nullptr, 0, nullptr, nullptr);
    const bool is_built_in = filter > 0 && filter <= H5Z_FILTER_SCALEOFFSET;
    if (!is_built_in || H5Zfilter_avail(filter) <= 0)
      return fmt::format("packed by filter {}, which is not built into HDF5", filter);
  }
  return std::nullopt;
}

/// Other filters detect damage as well, but a writer may skip them for a chunk.
bool has_fletcher32(hid_t creation) {
  unsigned flags = 0;
  std::size_t values = 0;
  return H5Pget_filter_by_id2(creation, H5Z_FILTER_FLETCHER32, &flags, &values, nullptr, 0, nullptr,
                              nullptr) >= 0 &&
         (flags & H5Z_FLAG_OPTIONAL) == 0;
}

Shape shape_of(hid_t space, const std::string& where) {
  std::vector<hsize_t> dimensions(H5S_MAX_RANK);
  const int rank = H5Sget_simple_extent_ndims(space);
  if (rank < 0 || rank > H5S_MAX_RANK ||
      H5Sget_simple_extent_dims(space, dimensions.data(), nullptr) < 0) {
    damaged(where, "its shape cannot be read");
  }
  return {dimensions.begin(), dimensions.begin() + rank};
}

std::optional<std::uint64_t> contiguous_offset(hid_t data_set, std::uint64_t bytes,
                                               std::uint64_t file_bytes, const std::string& where) {
  if (bytes == 0) return 0;
  const hsize_t allocated = H5Dget_storage_size(data_set);
  if (allocated == 0) return std::nullopt;  // never written: HDF5 gives its fill value
  if (allocated != bytes) damaged(where, "shape and allocated bytes do not agree");
  const haddr_t offset = H5Dget_offset(data_set);
  if (offset > file_bytes || bytes > file_bytes - offset) {
    damaged(where, fmt::format("its {} bytes at {} end behind the file's {} bytes", bytes, offset,
                               file_bytes));
  }
  return offset;
}

/// Returns the bytes of all chunks that one row of chunks spans. With this cache, sequential reads
/// unpack no chunk twice.
std::uint64_t chunk_cache_bytes(hid_t creation, const StoredTensor& tensor,
                                const std::string& where) {
  std::vector<hsize_t> chunk(tensor.shape.size());
  if (H5Pget_chunk(creation, static_cast<int>(chunk.size()), chunk.data()) !=
      static_cast<int>(chunk.size())) {
    damaged(where, "the shape of its chunks cannot be read");
  }
  std::uint64_t chunk_bytes = size_of(tensor.dtype);
  std::uint64_t rows_bytes = size_of(tensor.dtype);
  for (std::size_t i = 0; i < chunk.size(); ++i) {
    if (chunk[i] == 0) damaged(where, "a chunk without elements");
    chunk_bytes = checked_mul(chunk_bytes, chunk[i], "the bytes of a chunk");
    const std::uint64_t across =
        i == 0 ? chunk[0] : round_up(tensor.shape[i], chunk[i], "the elements of chunks");
    rows_bytes = checked_mul(rows_bytes, across, "the bytes of chunks");
  }
  if (chunk_bytes > kChunkBytes) {
    raise(ErrorCode::Unsupported,
          fmt::format("{}: its chunks have {} bytes each, more than the {} that are unpacked at "
                      "once",
                      where, chunk_bytes, kChunkBytes),
          "h5repack -l CONTI writes the file without chunks");
  }
  return std::max(chunk_bytes, std::min(rows_bytes, kCacheBytes));
}

}  // namespace

std::variant<StoredTensor, Unreadable> describe_data_set(hid_t data_set, std::uint64_t file_bytes,
                                                         const std::string& where) {
  const Hdf5Handle creation(H5Dget_create_plist(data_set), H5Pclose);
  if (creation < 0) damaged(where, "its layout cannot be read");
  if (const auto reason = outside_reason(creation)) return Unreadable{Role::Weight, *reason};
  const Hdf5Handle type(H5Dget_type(data_set), H5Tclose);
  const Hdf5Handle space(H5Dget_space(data_set), H5Sclose);
  if (type < 0 || space < 0) damaged(where, "its type and shape cannot be read");
  const auto element = element_type(type, text_attribute(data_set, kDTypeAttribute).value_or(""));
  if (!element) return Unreadable{role_of_type(type), std::string(describe_type(type))};
  if (H5Sget_simple_extent_type(space) == H5S_NULL)
    return Unreadable{Role::ClientValue, "no shape"};
  StoredTensor tensor;
  tensor.dtype = element->dtype;
  tensor.shape = shape_of(space, where);
  const std::uint64_t bytes =
      checked_mul(element_count(tensor.shape), size_of(tensor.dtype), where + ": its size");
  const H5D_layout_t layout = H5Pget_layout(creation);
  if (layout == H5D_CONTIGUOUS && element->as_stored)
    tensor.offset = contiguous_offset(data_set, bytes, file_bytes, where);
  if (layout == H5D_CHUNKED) {
    tensor.cache_bytes = chunk_cache_bytes(creation, tensor, where);
    tensor.has_checksum = has_fletcher32(creation);
  }
  return tensor;
}

}  // namespace unishard::converters::hdf5
