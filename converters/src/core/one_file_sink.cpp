#include "core/one_file_sink.hpp"

namespace unishard::converters {

std::vector<Fragment> whole_tensors(const Catalog& catalog) {
  std::vector<Fragment> fragments;
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    const std::uint64_t elements = catalog.tensors[i].elements();
    if (elements > 0) fragments.push_back({static_cast<std::uint32_t>(i), {0, elements}});
  }
  return fragments;
}

OneFileSink::OneFileSink(Storage& storage, const Path& output, Catalog catalog, const Begin& begin,
                         std::vector<std::string> notes)
    : partial_(storage, output, PartialOutput::Shape::File),
      catalog_(std::move(catalog)),
      notes_(std::move(notes)),
      fragments_(whole_tensors(catalog_)),
      file_(storage.create(partial_.path())),
      offsets_(begin(*file_)) {}

void OneFileSink::write(std::size_t fragment, ElementRange range,
                        std::span<const std::byte> bytes) {
  const std::size_t tensor = fragments_.at(fragment).tensor;
  file_->write_at(offsets_[tensor] + range.begin * size_of(catalog_.tensors[tensor].dtype), bytes);
}

std::string OneFileSink::seal() {
  file_->sync();
  file_->close();
  return {};
}

Path OneFileSink::complete(std::span<const std::string> /*seals*/) { return partial_.path(); }

}  // namespace unishard::converters
