#include "formats/hdf5/new_file.hpp"

#include "unishard/format/hdf5_driver.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/shard_entry.hpp"

#include "core/embedded_catalog.hpp"
#include "formats/hdf5/element_types.hpp"
#include "formats/hdf5/link_names.hpp"
#include "formats/hdf5/strings.hpp"

namespace unishard::converters::hdf5 {
namespace {

class Maker {
 public:
  explicit Maker(File& file)
      : path_(file.path()),
        links_(H5Pcreate(H5P_LINK_CREATE), H5Pclose),
        creation_(H5Pcreate(H5P_DATASET_CREATE), H5Pclose),
        target_(std::make_shared<Hdf5Target>()),
        file_(create(file), H5Fclose) {
    ok(H5Pset_create_intermediate_group(links_, 1), "have groups made");
    ok(H5Pset_char_encoding(links_, H5T_CSET_UTF8), "set the names' encoding");
    ok(H5Pset_layout(creation_, H5D_CONTIGUOUS), "set the layout");
    ok(H5Pset_alloc_time(creation_, H5D_ALLOC_TIME_EARLY), "set early allocation");
    ok(H5Pset_fill_time(creation_, H5D_FILL_TIME_NEVER), "switch off filling");
    ok(H5Pset_obj_track_times(creation_, false), "switch off times");
  }

  ~Maker() { target_->file = nullptr; }  // a file that was not closed is abandoned
  Maker(const Maker&) = delete;
  Maker& operator=(const Maker&) = delete;

  std::uint64_t tensor(const NewDataSet& item) const {
    const std::vector<hsize_t> dimensions(item.shape.begin(), item.shape.end());
    const Hdf5Handle space(
        ok(H5Screate_simple(static_cast<int>(dimensions.size()), dimensions.data(), nullptr),
           "create a shape"),
        H5Sclose);
    const Hdf5Handle made = data_set(item.path, exchange_type(item.dtype), space);
    if (needs_attribute(item.dtype)) {
      attribute(made, kDTypeAttribute, std::string(name_of(item.dtype)));
    }
    if (!item.main_name.empty()) attribute(made, kNameAttribute, item.main_name);
    return offset_of(made);
  }

  std::uint64_t text(std::uint64_t bytes) const {
    const Hdf5Handle space(ok(H5Screate(H5S_SCALAR), "create a shape"), H5Sclose);
    return offset_of(data_set(std::string(kCatalogKey), text_type(bytes), space));
  }

  void link(const std::string& path, const std::string& target) const {
    ok(H5Lcreate_hard(file_, target.c_str(), file_, path.c_str(), links_, H5P_DEFAULT),
       "link " + unishard::quote(path));
  }

  /// Returns the size that HDF5 has given to the file.
  std::uint64_t close() {
    ok(H5Fclose(file_.release()), "close the file");
    return target_->end;
  }

 private:
  template <class T>
  T ok(T result, std::string_view action) const {
    return hdf5_checked(*target_, path_, result, action);
  }

  /// Files that HDF5 1.8 reads; groups remember the order in which they were filled.
  hid_t create(File& file) const {
    target_->file = &file;
    const Hdf5Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
    const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    ok(H5Pset_obj_track_times(creation, false), "switch off times");
    ok(H5Pset_link_creation_order(creation, H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED),
       "keep the order");
    ok(H5Pset_libver_bounds(access, H5F_LIBVER_EARLIEST, H5F_LIBVER_V18), "set the version");
    ok(H5Pset_alignment(access, kPayloadAlign, kPayloadAlign), "set the alignment");
    ok(H5Pset_meta_block_size(access, 65536), "set the metadata block size");
    ok(set_hdf5_driver(access, target_), "set the driver");
    return ok(H5Fcreate(path_.c_str(), H5F_ACC_EXCL, creation, access), "create the file");
  }

  Hdf5Handle data_set(const std::string& path, hid_t type, hid_t space) const {
    return {ok(H5Dcreate2(file_, path.c_str(), type, space, links_, creation_, H5P_DEFAULT),
               "create data set " + unishard::quote(path)),
            H5Dclose};
  }

  void attribute(hid_t object, const char* name, const std::string& value) const {
    ok(write_text_attribute(object, name, value) ? 0 : -1, "write an attribute");
  }

  static std::uint64_t offset_of(hid_t data_set) {
    const haddr_t offset = H5Dget_offset(data_set);
    return offset == HADDR_UNDEF ? 0 : offset;
  }

  const Path& path_;
  const Hdf5Handle links_;
  const Hdf5Handle creation_;
  const std::shared_ptr<Hdf5Target> target_;
  Hdf5Handle file_;
};

}  // namespace

NewFileOffsets fill_new_file(File& file, const NewFile& content) {
  const Hdf5Lock lock;
  Maker maker(file);
  NewFileOffsets offsets;
  for (const NewDataSet& item : content.data_sets) offsets.data_sets.push_back(maker.tensor(item));
  for (const auto& [link, data_set] : content.links)
    maker.link(link, content.data_sets[data_set].path);
  if (content.text_bytes > 0) offsets.text = maker.text(content.text_bytes);
  file.resize(maker.close());
  return offsets;
}

}  // namespace unishard::converters::hdf5
