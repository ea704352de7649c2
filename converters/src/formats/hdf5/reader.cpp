// Tensors whose bytes are stored as they are needed (everything that make_hdf5_sink() writes) are
// read by positioned reads. libhdf5 reads the other tensors, and lists the file.
#include "formats/hdf5/reader.hpp"

#include "unishard/format/error.hpp"

#include "core/embedded_catalog.hpp"
#include "core/read_counts.hpp"
#include "core/wrapped_names.hpp"
#include "formats/hdf5/existing_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace unishard::converters {
namespace {

using hdf5::Directory;
using hdf5::ListedTensor;

class Hdf5Source final : public Source {
 public:
  Hdf5Source(Storage& storage, const Path& path) : file_(storage.open(path)) {
    auto existing = std::make_unique<hdf5::ExistingFile>(path, file_->size());
    Directory directory = existing->list();
    tensors_ = std::move(directory.tensors);
    losses_ = std::move(directory.losses);
    const bool all_plain = std::ranges::all_of(
        tensors_, [](const ListedTensor& tensor) { return tensor.stored.offset.has_value(); });
    if (!all_plain) existing_ = std::move(existing);
    fill_catalog();
    if (directory.catalog_text) {
      const std::string where = fmt::format("{}: /{}", path.string(), kCatalogKey);
      restore_catalog(*directory.catalog_text, catalog_, where);
      unwrap_restored(catalog_, "hdf5");
    } else {
      unwrap_names(catalog_, "hdf5");
    }
    validate(catalog_, path.string());
  }

  std::string format() const override { return "hdf5"; }
  const Catalog& catalog() const override { return catalog_; }
  Losses own_losses() const override { return losses_; }

  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    if (range.empty()) return;
    const ListedTensor& listed = tensors_.at(tensor);
    if (listed.stored.offset) {
      file_->read_at(*listed.stored.offset + range.begin * size_of(listed.stored.dtype), out);
    } else {
      existing_->read(tensor, range, out);
    }
    if (is_checked_) counts_.add(listed.stored.has_checksum, out.size());
  }
  /// libhdf5 compares each chunk before it returns any of it.
  InputCheck compare_checksums(const TransferOptions&, const ReadPeers&) const override {
    return counts_.result();
  }
  bool ignore_checksums() override {
    is_checked_ = false;
    if (existing_) existing_->ignore_checksums();
    return true;
  }

 private:
  void fill_catalog() {
    for (const ListedTensor& listed : tensors_) {
      TensorInfo tensor;
      tensor.fqn = listed.name;
      tensor.state = state::kWeights;
      tensor.dtype = listed.stored.dtype;
      tensor.shape = listed.stored.shape;
      catalog_.tensors.push_back(std::move(tensor));
      for (const std::string& other : listed.other_names)
        catalog_.aliases.push_back({other, listed.name});
    }
  }

  const std::unique_ptr<File> file_;
  std::unique_ptr<hdf5::ExistingFile> existing_;  ///< null when nothing needs it
  std::vector<ListedTensor> tensors_;
  Catalog catalog_;
  Losses losses_;
  bool is_checked_ = true;
  mutable ReadCounts counts_;
};

constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
constexpr std::uint64_t kUserBlockBytesMin = 512;  // and its doubles

bool has_signature(const File& file, std::uint64_t offset) {
  std::array<char, kSignature.size()> bytes{};
  if (file.size() < offset + bytes.size()) return false;
  file.read_at(offset, std::as_writable_bytes(std::span(bytes)));
  return std::string_view(bytes.data(), bytes.size()) == kSignature;
}

}  // namespace

bool is_hdf5(Storage& storage, const Path& path) {
  if (storage.kind(path) != EntryKind::File) return false;
  const std::unique_ptr<File> file = storage.open(path);
  if (has_signature(*file, 0)) return true;
  if (path.extension() != ".h5" && path.extension() != ".hdf5") return false;
  for (std::uint64_t offset = kUserBlockBytesMin; offset < file->size(); offset *= 2) {
    if (has_signature(*file, offset)) return true;
  }
  return false;
}

std::unique_ptr<Source> open_hdf5(Storage& storage, const Path& path) {
  return std::make_unique<Hdf5Source>(storage, path);
}

}  // namespace unishard::converters
