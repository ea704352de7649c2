#include "formats/gguf/reader.hpp"

#include "unishard/format/error.hpp"

#include "core/embedded_catalog.hpp"
#include "core/file_records.hpp"
#include "core/read_counts.hpp"
#include "core/wrapped_names.hpp"
#include "formats/gguf/header.hpp"

#include <fmt/format.h>

#include <array>

namespace unishard::converters {
namespace {

class GgufSource final : public Source {
 public:
  GgufSource(Storage& storage, const Path& path) : file_(storage.open(path)) {
    gguf::Header header = gguf::read_header(*file_);
    losses_ = std::move(header.losses);
    for (gguf::TensorEntry& entry : header.tensors) {
      TensorInfo tensor;
      tensor.fqn = std::move(entry.name);
      tensor.state = state::kWeights;
      tensor.dtype = entry.dtype;
      tensor.shape = std::move(entry.shape);
      catalog_.tensors.push_back(std::move(tensor));
      offsets_.push_back(entry.offset);
    }
    if (header.catalog_text) {
      const std::string where = fmt::format("{}: {}", path.string(), kCatalogKey);
      restore_catalog(*header.catalog_text, catalog_, where);
      unwrap_restored(catalog_, "gguf");
    } else {
      unwrap_names(catalog_, "gguf");
    }
    if (catalog_.producer.is_null()) catalog_.producer = Json::object();
    if (catalog_.producer.is_object())
      catalog_.producer[std::string(kGgufMetadata)] = std::move(header.metadata);
    drop_unreadable(catalog_, losses_);
    validate(catalog_, path.string());
  }

  std::string format() const override { return "gguf"; }
  const Catalog& catalog() const override { return catalog_; }
  Losses own_losses() const override { return losses_; }

  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    file_->read_at(offsets_.at(tensor) + range.begin * size_of(catalog_.tensors[tensor].dtype),
                   out);
    counts_.add(false, out.size());
  }
  InputCheck compare_checksums(const TransferOptions&, const ReadPeers&) const override {
    return counts_.result();
  }

 private:
  const std::unique_ptr<File> file_;
  Catalog catalog_;
  std::vector<std::uint64_t> offsets_;  ///< per tensor
  Losses losses_;
  mutable ReadCounts counts_;
};

}  // namespace

bool is_gguf(Storage& storage, const Path& path) {
  if (storage.kind(path) != EntryKind::File) return false;
  const std::unique_ptr<File> file = storage.open(path);
  std::array<char, gguf::kMagic.size()> head{};
  if (file->size() < head.size()) return false;
  file->read_at(0, std::as_writable_bytes(std::span(head)));
  return std::string_view(head.data(), head.size()) == gguf::kMagic;
}

std::unique_ptr<Source> open_gguf(Storage& storage, const Path& path) {
  return std::make_unique<GgufSource>(storage, path);
}

}  // namespace unishard::converters
