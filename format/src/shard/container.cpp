#include "shard/container.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/hdf5_driver.hpp"
#include "unishard/format/hdf5_library.hpp"
#include "unishard/format/shard_entry.hpp"
#include "unishard/format/version.hpp"

#include "shard/tables.hpp"

#include <algorithm>
#include <utility>

namespace unishard::detail {
namespace {

constexpr H5Z_filter_t kZstdFilter = 32015;  // as registered with The HDF Group

using Handle = Hdf5Handle;

Handle index_type(bool has_boxes) {
  Handle type(H5Tcreate(H5T_COMPOUND, kIndexRowBytes), H5Tclose);
  H5Tinsert(type, "tensor", 0, H5T_STD_U32LE);
  H5Tinsert(type, "data_set", 4, H5T_STD_U32LE);
  H5Tinsert(type, "begin", 8, H5T_STD_U64LE);
  H5Tinsert(type, "end", 16, H5T_STD_U64LE);
  H5Tinsert(type, "element_offset", 24, H5T_STD_U64LE);
  H5Tinsert(type, "crc64", 32, H5T_STD_U64LE);
  H5Tinsert(type, "name_offset", 40, H5T_STD_U64LE);
  H5Tinsert(type, "name_bytes", 48, H5T_STD_U32LE);
  H5Tinsert(type, has_boxes ? "box" : "reserved", 52, H5T_STD_U32LE);
  H5Tinsert(type, "nan_count", 56, H5T_STD_U64LE);
  H5Tinsert(type, "inf_count", 64, H5T_STD_U64LE);
  H5Tinsert(type, "min", 72, H5T_IEEE_F64LE);
  H5Tinsert(type, "max", 80, H5T_IEEE_F64LE);
  H5Tinsert(type, "sum_squares", 88, H5T_IEEE_F64LE);
  return type;
}

Handle chunk_type(bool shared) {
  Handle type(H5Tcreate(H5T_COMPOUND, chunk_row_bytes(shared)), H5Tclose);
  H5Tinsert(type, "file_offset", 0, H5T_STD_U64LE);
  H5Tinsert(type, "stored_bytes", 8, H5T_STD_U32LE);
  H5Tinsert(type, "filter_mask", 12, H5T_STD_U32LE);
  H5Tinsert(type, "crc64", 16, H5T_STD_U64LE);
  if (!shared) return type;
  H5Tinsert(type, "file", 24, H5T_STD_U32LE);
  H5Tinsert(type, "reserved", 28, H5T_STD_U32LE);
  return type;
}

}  // namespace

struct Container::Impl {
  const File& where;
  const std::shared_ptr<Hdf5Target> target = std::make_shared<Hdf5Target>();
  ContainerOffsets offsets;
  std::vector<ContainerDataSet> sets;
  std::vector<Handle> open_sets;  // in their order
  hid_t file = -1;

  explicit Impl(File& f) : where(f) { target->file = &f; }
  ~Impl() {
    const Hdf5Lock lock;
    target->file = nullptr;  // a container that was not closed is abandoned
    open_sets.clear();
    if (file >= 0) H5Fclose(file);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  template <class T>
  T ok(T result, std::string_view action) const {
    return hdf5_checked(*target, where.path(), result, action);
  }

  void create() {
    const Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose),
        access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    ok(H5Pset_userblock(creation, kUserBlockBytes), "set the user block");
    ok(H5Pset_obj_track_times(creation, false), "switch off times");
    ok(H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110), "set the library version");
    ok(H5Pset_alignment(access, kPayloadAlign, kPayloadAlign), "set the alignment");
    ok(H5Pset_meta_block_size(access, 65536), "set the metadata block size");
    ok(H5Pset_fclose_degree(access, H5F_CLOSE_STRONG), "set the close degree");
    ok(set_hdf5_driver(access, target), "set the driver");
    file = ok(H5Fcreate(where.path().c_str(), H5F_ACC_TRUNC, creation, access), "create the file");
  }

  void group(const char* name) const {
    const Handle creation(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
    ok(H5Pset_obj_track_times(creation, false), "switch off times");
    const Handle made(
        ok(H5Gcreate2(file, name, H5P_DEFAULT, creation, H5P_DEFAULT), "create a group"), H5Gclose);
  }

  // Creates a 1-D data set without writing it and returns it open: contiguous and allocated, or in
  // filtered chunks.
  Handle data_set(const std::string& name, hid_t type, std::uint64_t elements,
                  std::uint64_t chunk_elements = 0) const {
    const hsize_t dimension = elements;
    const Handle space(ok(H5Screate_simple(1, &dimension, nullptr), "create a space"), H5Sclose);
    const Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    if (chunk_elements == 0) {
      ok(H5Pset_layout(creation, H5D_CONTIGUOUS), "set the layout");
      ok(H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY), "set early allocation");
      ok(H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER), "switch off filling");
    } else {
      const hsize_t chunk = chunk_elements;
      const unsigned level = 1;  // for programs that rewrite the data set; readers ignore it
      ok(H5Pset_chunk(creation, 1, &chunk), "set the chunks");
      ok(H5Pset_shuffle(creation), "set the shuffle filter");
      // Optional, because HDF5 would otherwise look for the plug-in, although this code encodes.
      ok(H5Pset_filter(creation, kZstdFilter, H5Z_FLAG_OPTIONAL, 1, &level), "set the zstd filter");
    }
    ok(H5Pset_obj_track_times(creation, false), "switch off times");
    return {ok(H5Dcreate2(file, name.c_str(), type, space, H5P_DEFAULT, creation, H5P_DEFAULT),
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

  void describe(const ContainerSpec& spec) const {
    attribute(file, "format", kFormatName);
    attribute(file, "version", kFormatVersion);
    attribute(file, "save_id", spec.save_id);
    attribute(file, "rank", spec.rank);
    attribute(file, "world_size", spec.world_size);
    attribute(file, "chunk_bytes", spec.chunk_bytes);
    group("data");
    group("chunks");
    if (spec.shares) group("fresh");
  }

  void describe(hid_t data, const ContainerDataSet& item) const {
    attribute(data, "state", item.state);
    attribute(data, "dtype", name_of(item.dtype));
    attribute(data, "elements", item.elements);
  }

  // Creates a virtual data set. HDF5 looks for relative file names in the container's folder.
  void create_virtual(const ContainerDataSet& item, const std::vector<ChunkRun>& runs) const {
    const hsize_t dimension = item.padded_elements;
    const Handle space(ok(H5Screate_simple(1, &dimension, nullptr), "create a space"), H5Sclose);
    const Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    ok(H5Pset_obj_track_times(creation, false), "switch off times");
    for (const ChunkRun& run : runs) {
      const hsize_t first = run.first * item.chunk_elements, one = 1;
      const hsize_t count = std::min<hsize_t>(run.count * item.chunk_elements, dimension - first);
      ok(H5Sselect_hyperslab(space, H5S_SELECT_SET, &first, nullptr, &one, &count), "select");
      ok(H5Pset_virtual(creation, space, run.file.c_str(),
                        ("/" + run.group + "/" + item.name).c_str(), space),
         "map chunks");
    }
    ok(H5Sselect_all(space), "select");
    const Handle made(ok(H5Dcreate2(file, ("data/" + item.name).c_str(), hdf5_type(item.dtype),
                                    space, H5P_DEFAULT, creation, H5P_DEFAULT),
                         "create data set " + item.name),
                      H5Dclose);
    describe(made, item);
  }

  void create_data_sets(const ContainerSpec& spec) {
    const bool has_boxes = spec.boxes_bytes != 0;
    offsets.index = offset_of(data_set("index", index_type(has_boxes), spec.index_rows));
    offsets.names = offset_of(data_set("names", H5T_STD_U8LE, spec.names_bytes));
    if (has_boxes)
      offsets.boxes =
          offset_of(data_set("boxes", H5T_STD_U64LE, spec.boxes_bytes / sizeof(std::uint64_t)));
    for (const ContainerDataSet& item : spec.data_sets) {
      offsets.chunks.push_back(
          offset_of(data_set("chunks/" + item.name, chunk_type(spec.shares), item.chunks)));
    }
    for (const ContainerDataSet& item : spec.data_sets) {
      Handle data = data_set((spec.shares ? "fresh/" : "data/") + item.name, hdf5_type(item.dtype),
                             item.padded_elements, item.chunk_elements);
      if (!spec.shares) describe(data, item);
      offsets.data.push_back(offset_of(data));
      open_sets.push_back(std::move(data));
    }
  }
};

Container::Container(File& file, const ContainerSpec& spec) : impl_(std::make_unique<Impl>(file)) {
  const Hdf5Lock lock;
  impl_->sets = spec.data_sets;
  impl_->create();
  impl_->describe(spec);
  impl_->create_data_sets(spec);
}

Container::~Container() = default;

const ContainerOffsets& Container::offsets() const { return impl_->offsets; }

std::uint64_t Container::end() const {
  const Hdf5Lock lock;
  return impl_->target->end;
}

std::uint64_t Container::place_chunk(std::size_t data_set, std::uint64_t chunk, std::uint64_t bytes,
                                     std::uint32_t filter_mask) {
  const Hdf5Lock lock;
  Impl& self = *impl_;
  const hsize_t first = chunk * self.sets.at(data_set).chunk_elements;
  self.target->raw_data_at.reset();
  self.target->places_raw_data = true;
  // The driver uses the place and not the bytes.
  const herr_t placed =
      H5Dwrite_chunk(self.open_sets.at(data_set), H5P_DEFAULT, filter_mask, &first, bytes, &self);
  self.target->places_raw_data = false;
  self.ok(placed, "place a chunk");
  const std::optional<std::uint64_t> place = self.target->raw_data_at;
  if (!place) raise(ErrorCode::Internal, self.where.path().native() + ": HDF5 placed no chunk");
  return *place;
}

void Container::map(std::size_t data_set, const std::vector<ChunkRun>& runs) {
  const Hdf5Lock lock;
  impl_->create_virtual(impl_->sets.at(data_set), runs);
}

void Container::close() {
  const Hdf5Lock lock;
  impl_->open_sets.clear();
  impl_->ok(H5Fclose(std::exchange(impl_->file, -1)), "close the file");
}

}  // namespace unishard::detail
