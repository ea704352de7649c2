// An archive of stored entries as numpy.savez writes it, with all elements at multiples of 64
// bytes. Every byte has its offset from the start, so several threads may write arrays in any
// order. What numpy cannot express is JSON in arrays of bytes: the embedded catalog, and the types
// of 8-bit floats.
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include "containers/zip_writer.hpp"
#include "core/embedded_catalog.hpp"
#include "core/idle_sink.hpp"
#include "core/one_file_sink.hpp"
#include "core/partial_output.hpp"
#include "formats/numpy/array_header.hpp"
#include "formats/numpy/entry_names.hpp"

#include <fmt/format.h>

#include <unordered_set>

namespace unishard::converters {
namespace {

/// What precedes the elements of an entry, and how many bytes they have.
struct Entry {
  std::string name;
  std::string front;  ///< of our own entries: everything
  std::uint64_t payload_bytes = 0;
};

Entry own_entry(std::string_view key, const std::string& text) {
  return {numpy::own_entry_name(key), numpy::encode_header(DType::UInt8, {text.size()}) + text, 0};
}

/// Returns the entries of the tensors, in their order, and then our own.
std::vector<Entry> entries_of(const Catalog& catalog) {
  const std::vector<std::string> paths = flat_paths(catalog, "");
  const std::vector<std::string> names = numpy::entry_names(paths);
  std::vector<Entry> entries;
  std::unordered_set<std::string_view> used;
  Json types = Json::object();
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const TensorInfo& tensor = catalog.tensors[i];
    if (!used.insert(paths[i]).second) {
      raise(ErrorCode::InvalidArgument,
            fmt::format("an .npz file holds one array of a name, and two tensors would be {}",
                        unishard::quote(paths[i])));
    }
    entries.push_back({names[i], numpy::encode_header(tensor.dtype, tensor.shape), tensor.bytes()});
    if (size_of(tensor.dtype) == 1 && info(tensor.dtype).kind == Kind::Float)
      types[paths[i]] = name_of(tensor.dtype);
  }
  if (!types.empty()) entries.push_back(own_entry(numpy::kTypesKey, types.dump()));
  if (!is_bare_model(catalog))
    entries.push_back(own_entry(kCatalogKey, catalog_text(catalog, paths)));
  return entries;
}

std::vector<torch::ZipWriter::Item> items_of(const std::vector<Entry>& entries) {
  std::vector<torch::ZipWriter::Item> items;
  items.reserve(entries.size());
  for (const Entry& entry : entries)
    items.push_back({entry.name, entry.front.size() + entry.payload_bytes});
  return items;
}

class NpzSink final : public Sink {
 public:
  NpzSink(Storage& storage, const Path& output, Catalog catalog, const std::vector<Entry>& entries)
      : partial_(storage, output, PartialOutput::Shape::File),
        catalog_(std::move(catalog)),
        fragments_(whole_tensors(catalog_)),
        file_(storage.create(partial_.path())),
        zip_(*file_, 0, "", items_of(entries)) {
    file_->reserve(zip_.end_offset());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      zip_.write(i, 0, std::as_bytes(std::span(entries[i].front)));
      front_bytes_.push_back(entries[i].front.size());
    }
  }

  const std::vector<Fragment>& fragments() const override { return fragments_; }

  void write(std::size_t fragment, ElementRange range, std::span<const std::byte> bytes) override {
    const std::size_t tensor = fragments_.at(fragment).tensor;
    zip_.write(tensor, front_bytes_[tensor] + range.begin * size_of(catalog_.tensors[tensor].dtype),
               bytes);
  }

  std::string seal() override {
    zip_.finish();
    file_->sync();
    file_->close();
    return {};
  }
  Path complete(std::span<const std::string> /*seals*/) override { return partial_.path(); }
  void publish() override { partial_.publish(); }

 private:
  PartialOutput partial_;  // before the file: it removes it after it is closed
  const Catalog catalog_;
  const std::vector<Fragment> fragments_;
  const std::unique_ptr<File> file_;
  torch::ZipWriter zip_;
  std::vector<std::uint64_t> front_bytes_;  ///< per entry
};

}  // namespace

std::unique_ptr<Sink> make_npz_sink(Storage& storage, const Path& output, Catalog catalog,
                                    const WorkSplit& share) {
  if (share.rank != 0) return std::make_unique<IdleSink>();
  const std::vector<Entry> entries = entries_of(catalog);
  return std::make_unique<NpzSink>(storage, output, std::move(catalog), entries);
}

}  // namespace unishard::converters
