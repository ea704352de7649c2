#include "formats/hdf5/existing_file.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/version.hpp"

#include "formats/hdf5/directory_text.hpp"
#include "formats/hdf5/element_types.hpp"
#include "formats/hdf5/hyperslabs.hpp"
#include "formats/hdf5/strings.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

namespace unishard::converters::hdf5 {
namespace {

constexpr std::size_t kChunkSlots = 10007;  // prime, as HDF5 asks

Hdf5Handle open_file(const Path& path) {
  Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  if (file >= 0) return file;
  const std::string reasons = hdf5_reasons();
  // What the system refuses to everybody is no damage of the file.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) raise_errno("opening", path.string(), errno);
  ::close(descriptor);
  raise(hdf5_failure(reasons), fmt::format("{}: HDF5 cannot open it: {}", path.string(), reasons),
        "h5dump -H says whether other programs can read it");
}

void refuse_native(hid_t file, const Path& path) {
  if (text_attribute(file, "format") != kFormatName) return;
  raise(ErrorCode::Unsupported,
        fmt::format("{} is one shard of a UniShard checkpoint", path.string()),
        "name the checkpoint's folder, which holds manifest.json");
}

/// One open data set.
class Reader {
 public:
  Reader(const Path& path, hid_t file, const ListedTensor& tensor, bool is_checked)
      : where_(fmt::format("{}: {}", path.string(), unishard::quote("/" + tensor.path))),
        stored_(tensor.stored),
        data_set_(open_data_set(file, tensor.path)),
        file_type_(H5Dget_type(data_set_), H5Tclose),
        type_(memory_type(file_type_, stored_.dtype)),
        space_(H5Dget_space(data_set_), H5Sclose),
        transfer_(H5Pcreate(H5P_DATASET_XFER), H5Pclose) {
    H5Pset_edc_check(transfer_, is_checked ? H5Z_ENABLE_EDC : H5Z_DISABLE_EDC);
  }

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
    const std::string reasons = hdf5_reasons();
    raise(hdf5_failure(reasons), fmt::format("{}: HDF5 failed to {}: {}", where_, action, reasons));
  }

  Hdf5Handle open_data_set(hid_t file, const std::string& path) const {
    const Hdf5Handle access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose);
    if (stored_.cache_bytes > 0)
      H5Pset_chunk_cache(access, kChunkSlots, stored_.cache_bytes, H5D_CHUNK_CACHE_W0_DEFAULT);
    Hdf5Handle data_set(H5Dopen2(file, path.c_str(), access), H5Dclose);
    if (data_set < 0) fail("open it");
    return data_set;
  }

  void read_selected(std::uint64_t elements, char* out) const {
    const hsize_t count = elements;
    const Hdf5Handle memory(H5Screate_simple(1, &count, nullptr), H5Sclose);
    if (H5Dread(data_set_, type_, memory, space_, transfer_, out) < 0) fail("read it");
  }

  const std::string where_;
  const StoredTensor stored_;
  const Hdf5Handle data_set_;
  const Hdf5Handle file_type_;
  const Hdf5Handle type_;  ///< in memory
  const Hdf5Handle space_;
  const Hdf5Handle transfer_;
};

struct ReadRequest {
  std::uint64_t index = 0;
  ElementRange range;
  std::uint64_t is_checked = 1;
};

/// State that the child keeps between requests: a data set that is read sequentially keeps its
/// unpacked chunks.
class Server {
 public:
  Server(Path path, std::uint64_t file_bytes) : path_(std::move(path)), file_bytes_(file_bytes) {}

  /// Answers a request: an empty one is list(), every other one is a ReadRequest.
  std::string answer(const std::string& request) {
    if (request.empty()) return list();
    ReadRequest wanted;
    if (request.size() != sizeof wanted) raise(ErrorCode::Internal, "a request of another size");
    std::memcpy(&wanted, request.data(), sizeof wanted);
    return read(wanted);
  }

 private:
  std::string list() {
    file_.emplace(open_file(path_));
    refuse_native(*file_, path_);
    directory_ = list_file(*file_, file_bytes_, path_.string());
    return encode_directory(directory_);
  }

  std::string read(const ReadRequest& wanted) {
    const ListedTensor& tensor = directory_.tensors.at(wanted.index);
    if (!reader_ || open_ != wanted.index) {
      reader_.reset();
      reader_.emplace(path_, *file_, tensor, wanted.is_checked != 0);
      open_ = wanted.index;
    }
    std::string bytes(wanted.range.size() * size_of(tensor.stored.dtype), '\0');
    reader_->read(wanted.range, bytes.data());
    return bytes;
  }

  const Path path_;
  const std::uint64_t file_bytes_;
  std::optional<Hdf5Handle> file_;
  Directory directory_;
  std::optional<Reader> reader_;
  std::uint64_t open_ = 0;  ///< the tensor that reader_ reads
};

}  // namespace

ExistingFile::ExistingFile(const Path& path, std::uint64_t file_bytes)
    : path_(path),
      process_(path.string(), [server = std::make_shared<Server>(path, file_bytes)](
                                  const std::string& request) { return server->answer(request); }) {
}

Directory ExistingFile::list() { return decode_directory(process_.ask(""), path_.string()); }

void ExistingFile::read(std::size_t index, ElementRange range, std::span<std::byte> out) {
  const ReadRequest request{index, range, is_checked_ ? 1u : 0u};
  const std::string bytes =
      process_.ask(std::string(reinterpret_cast<const char*>(&request), sizeof request));
  if (bytes.size() != out.size()) {
    raise(ErrorCode::Corrupt, fmt::format("{}: HDF5 gave {} bytes instead of {}", path_.string(),
                                          bytes.size(), out.size()));
  }
  std::memcpy(out.data(), bytes.data(), bytes.size());
}

}  // namespace unishard::converters::hdf5
