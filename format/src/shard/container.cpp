#include "shard/container.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/shard.hpp"
#include "unishard/format/version.hpp"

#include "shard/hdf5_library.hpp"

#include <fmt/format.h>

#include <utility>

namespace unishard::detail {
namespace {

// HDF5 returns negative values on failure and keeps the reasons on a stack.
template <class T>
T checked(T result, std::string_view action, const Path& path) {
  if (result >= 0) return result;
  raise(ErrorCode::Io,
        fmt::format("{}: HDF5 failed to {}: {}", path.native(), action, hdf5_reasons()),
        "check free space and permissions of the folder");
}

using Handle = Hdf5Handle;

Handle index_type() {
  Handle type(H5Tcreate(H5T_COMPOUND, kIndexRowBytes), H5Tclose);
  H5Tinsert(type, "tensor", 0, H5T_STD_U32LE);
  H5Tinsert(type, "data_set", 4, H5T_STD_U32LE);
  H5Tinsert(type, "begin", 8, H5T_STD_U64LE);
  H5Tinsert(type, "end", 16, H5T_STD_U64LE);
  H5Tinsert(type, "element_offset", 24, H5T_STD_U64LE);
  H5Tinsert(type, "crc64", 32, H5T_STD_U64LE);
  H5Tinsert(type, "name_offset", 40, H5T_STD_U64LE);
  H5Tinsert(type, "name_bytes", 48, H5T_STD_U32LE);
  H5Tinsert(type, "reserved", 52, H5T_STD_U32LE);
  H5Tinsert(type, "nan_count", 56, H5T_STD_U64LE);
  H5Tinsert(type, "inf_count", 64, H5T_STD_U64LE);
  H5Tinsert(type, "min", 72, H5T_IEEE_F64LE);
  H5Tinsert(type, "max", 80, H5T_IEEE_F64LE);
  H5Tinsert(type, "sum_squares", 88, H5T_IEEE_F64LE);
  return type;
}

Handle chunk_type() {
  Handle type(H5Tcreate(H5T_COMPOUND, kChunkRowBytes), H5Tclose);
  H5Tinsert(type, "file_offset", 0, H5T_STD_U64LE);
  H5Tinsert(type, "stored_bytes", 8, H5T_STD_U32LE);
  H5Tinsert(type, "filter_mask", 12, H5T_STD_U32LE);
  H5Tinsert(type, "crc64", 16, H5T_STD_U64LE);
  return type;
}

// One container being created; fails with the path in every message.
class Builder {
 public:
  explicit Builder(const Path& path) : path_(path) {
    const Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose),
        access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    ok(H5Pset_userblock(creation, kUserBlockBytes), "set the user block");
    ok(H5Pset_obj_track_times(creation, false), "switch off times");
    ok(H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110), "set the library version");
    ok(H5Pset_alignment(access, kPayloadAlign, kPayloadAlign), "set the alignment");
    ok(H5Pset_meta_block_size(access, 65536), "set the metadata block size");
    ok(H5Pset_fclose_degree(access, H5F_CLOSE_STRONG), "set the close degree");
    file_ = ok(H5Fcreate(path.c_str(), H5F_ACC_EXCL, creation, access), "create the file");
  }
  ~Builder() {
    if (file_ >= 0) H5Fclose(file_);
  }
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  template <class T>
  T ok(T result, std::string_view action) const {
    return checked(result, action, path_);
  }
  hid_t file() const { return file_; }

  void group(const char* name) const {
    const Handle creation(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
    ok(H5Pset_obj_track_times(creation, false), "switch off times");
    const Handle made(
        ok(H5Gcreate2(file_, name, H5P_DEFAULT, creation, H5P_DEFAULT), "create a group"),
        H5Gclose);
  }

  // An allocated, unwritten, contiguous 1-D data set; returns it open.
  Handle data_set(const std::string& name, hid_t type, std::uint64_t elements) const {
    const hsize_t dimension = elements;
    const Handle space(ok(H5Screate_simple(1, &dimension, nullptr), "create a space"), H5Sclose);
    const Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    ok(H5Pset_layout(creation, H5D_CONTIGUOUS), "set the layout");
    ok(H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY), "set early allocation");
    ok(H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER), "switch off filling");
    ok(H5Pset_obj_track_times(creation, false), "switch off times");
    return {ok(H5Dcreate2(file_, name.c_str(), type, space, H5P_DEFAULT, creation, H5P_DEFAULT),
               "create data set " + name),
            H5Dclose};
  }

  std::uint64_t offset_of(hid_t data_set) const {
    const haddr_t offset = H5Dget_offset(data_set);
    return offset == HADDR_UNDEF ? 0 : offset;
  }

  void attribute(hid_t object, const char* name, std::uint64_t value) const {
    const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
    const Handle made(ok(H5Acreate2(object, name, H5T_STD_U64LE, space, H5P_DEFAULT, H5P_DEFAULT),
                         "create an attribute"),
                      H5Aclose);
    ok(H5Awrite(made, H5T_NATIVE_UINT64, &value), "write an attribute");
  }
  void attribute(hid_t object, const char* name, std::string_view value) const {
    const Handle space(H5Screate(H5S_SCALAR), H5Sclose), type(H5Tcopy(H5T_C_S1), H5Tclose);
    const std::string text(value);
    ok(H5Tset_size(type, text.size()), "size a string");
    ok(H5Tset_strpad(type, H5T_STR_NULLPAD), "pad a string");
    const Handle made(
        ok(H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT), "create an attribute"),
        H5Aclose);
    ok(H5Awrite(made, type, text.data()), "write an attribute");
  }

  void close() { ok(H5Fclose(std::exchange(file_, -1)), "close the file"); }

 private:
  const Path& path_;
  hid_t file_ = -1;
};

}  // namespace

ContainerOffsets create_container(const Path& path, const ContainerSpec& spec) {
  const Hdf5Lock lock;
  Builder builder(path);
  ContainerOffsets offsets;
  builder.attribute(builder.file(), "format", kFormatName);
  builder.attribute(builder.file(), "version", kFormatVersion);
  builder.attribute(builder.file(), "save_id", spec.save_id);
  builder.attribute(builder.file(), "rank", spec.rank);
  builder.attribute(builder.file(), "world_size", spec.world_size);
  builder.attribute(builder.file(), "chunk_bytes", spec.chunk_bytes);
  builder.group("data");
  builder.group("chunks");
  {
    const Handle index = builder.data_set("index", index_type(), spec.index_rows);
    const Handle names = builder.data_set("names", H5T_STD_U8LE, spec.names_bytes);
    offsets.index = builder.offset_of(index);
    offsets.names = builder.offset_of(names);
    for (const ContainerDataSet& item : spec.data_sets) {
      const Handle chunks = builder.data_set("chunks/" + item.name, chunk_type(), item.chunks);
      offsets.chunks.push_back(builder.offset_of(chunks));
    }
    for (const ContainerDataSet& item : spec.data_sets) {
      const Handle data =
          builder.data_set("data/" + item.name, hdf5_type(item.dtype), item.padded_elements);
      builder.attribute(data, "state", item.state);
      builder.attribute(data, "dtype", name_of(item.dtype));
      builder.attribute(data, "elements", item.elements);
      offsets.data.push_back(builder.offset_of(data));
    }
  }
  builder.close();
  return offsets;
}

}  // namespace unishard::detail
