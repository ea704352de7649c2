#include "formats/native/reader.hpp"

#include "unishard/format/checkpoint_reader.hpp"

#include "core/read_counts.hpp"

namespace unishard::converters {
namespace {

class NativeSource final : public Source {
 public:
  explicit NativeSource(std::shared_ptr<const CheckpointReader> reader)
      : reader_(std::move(reader)) {
    set_path(reader_->folder());
  }

  std::string format() const override { return "native"; }
  const Catalog& catalog() const override { return reader_->catalog(); }
  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    reader_->read(tensor, range, out);
    counts_.add(true, out.size());
  }
  void read_box_range(std::size_t tensor, BoxView box, std::span<std::byte> out) const override {
    reader_->read_box(tensor, box, out);
    counts_.add(true, out.size());
  }
  /// read() compares each chunk before it returns bytes of it.
  InputCheck compare_checksums(const TransferOptions&, const ReadPeers&) const override {
    return counts_.result();
  }
  bool ignore_checksums() override { return false; }
  std::uint64_t read_boundary(std::size_t tensor, std::uint64_t element) const override {
    return reader_->chunk_start(tensor, element);
  }

 private:
  const std::shared_ptr<const CheckpointReader> reader_;
  mutable ReadCounts counts_;
};

}  // namespace

std::unique_ptr<Source> open_native(Storage& storage, const Path& path,
                                    const std::optional<std::string>& tag) {
  // "folder/" has no name, and resolve_checkpoint() compares names with the tag.
  const Path folder = path.has_filename() ? path : path.parent_path();
  return make_native_source(open_checkpoint(storage, folder, tag));
}

std::unique_ptr<Source> make_native_source(std::shared_ptr<const CheckpointReader> reader) {
  return std::make_unique<NativeSource>(std::move(reader));
}

}  // namespace unishard::converters
