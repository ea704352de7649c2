#include "shard/container.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/shard.hpp"
#include "unishard/format/version.hpp"

#include <fmt/format.h>
#include <hdf5.h>

#include <mutex>
#include <utility>

namespace unishard::detail {
namespace {

std::mutex& hdf5_mutex() {
  static std::mutex mutex;
  return mutex;
}

herr_t append_error(unsigned, const H5E_error2_t* item, void* text) {
  auto& out = *static_cast<std::string*>(text);
  if (item->desc != nullptr && out.size() < 500)
    out += fmt::format("{}{}", out.empty() ? "" : "; ", item->desc);
  return 0;
}

// HDF5 returns negative values on failure and keeps the reasons on a stack.
template <class T>
T checked(T result, std::string_view action, const Path& path) {
  if (result >= 0) return result;
  std::string reasons;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, append_error, &reasons);
  raise(ErrorCode::Io, fmt::format("{}: HDF5 failed to {}: {}", path.native(), action, reasons),
        "check free space and permissions of the folder");
}

// Owns one HDF5 identifier.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Handle(hid_t id, Close close) : id_(id), close_(close) {}
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  Handle& operator=(Handle&&) = delete;
  operator hid_t() const { return id_; }
  hid_t release() { return std::exchange(id_, -1); }

 private:
  hid_t id_;
  Close close_;
};

Handle small_float(std::size_t exponent_bits, std::size_t mantissa_bits, std::size_t bias) {
  Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  H5Tset_fields(type, exponent_bits + mantissa_bits, mantissa_bits, exponent_bits, 0,
                mantissa_bits);
  H5Tset_size(type, (1 + exponent_bits + mantissa_bits) / 8);
  H5Tset_ebias(type, bias);
  return type;
}

Handle complex_type(hid_t part, std::size_t part_bytes) {
  Handle type(H5Tcreate(H5T_COMPOUND, 2 * part_bytes), H5Tclose);
  H5Tinsert(type, "r", 0, part);
  H5Tinsert(type, "i", part_bytes, part);
  return type;
}

// The 8-bit floats have no HDF5 type that every reader converts, and bool is stored as 0 and 1.
Handle file_type(DType dtype) {
  const auto stock = [](hid_t type) { return Handle(H5Tcopy(type), H5Tclose); };
  switch (dtype) {
    case DType::Float64:
      return stock(H5T_IEEE_F64LE);
    case DType::Float32:
      return stock(H5T_IEEE_F32LE);
    case DType::Float16:
      return small_float(5, 10, 15);
    case DType::BFloat16:
      return small_float(8, 7, 127);
    case DType::Int64:
      return stock(H5T_STD_I64LE);
    case DType::Int32:
      return stock(H5T_STD_I32LE);
    case DType::Int16:
      return stock(H5T_STD_I16LE);
    case DType::Int8:
      return stock(H5T_STD_I8LE);
    case DType::UInt64:
      return stock(H5T_STD_U64LE);
    case DType::UInt32:
      return stock(H5T_STD_U32LE);
    case DType::UInt16:
      return stock(H5T_STD_U16LE);
    case DType::Complex64:
      return complex_type(H5T_IEEE_F32LE, 4);
    case DType::Complex128:
      return complex_type(H5T_IEEE_F64LE, 8);
    case DType::Float8E4M3:
    case DType::Float8E5M2:
    case DType::Float8E4M3Fnuz:
    case DType::Float8E5M2Fnuz:
    case DType::Float8E8M0:
    case DType::UInt8:
    case DType::Bool:
      return stock(H5T_STD_U8LE);
  }
  raise(ErrorCode::Internal, "a dtype without an HDF5 type");
}

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
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // reasons go into our messages, not to stderr
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
  const std::scoped_lock lock(hdf5_mutex());
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
          builder.data_set("data/" + item.name, file_type(item.dtype), item.padded_elements);
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
