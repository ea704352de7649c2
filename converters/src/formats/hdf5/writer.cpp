// The constructor creates the file complete except for its payload. All sizes are known, so several
// threads may write tensors in any order. The file appears by one rename.
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"

#include "core/embedded_catalog.hpp"
#include "core/partial_output.hpp"
#include "formats/hdf5/link_names.hpp"
#include "formats/hdf5/new_file.hpp"

#include <fmt/format.h>

#include <unordered_map>

namespace unishard::converters {
namespace {

using hdf5::NewFile;

constexpr std::size_t kDimensions = 32;  // HDF5's limit

/// What the file will hold, and what is left out.
struct Draft {
  NewFile file;
  std::string text;
  std::vector<std::string> notes;
};

void check_dimensions(const Catalog& catalog) {
  for (const TensorInfo& tensor : catalog.tensors) {
    if (tensor.shape.size() > kDimensions) {
      raise(ErrorCode::Unsupported,
            fmt::format("{} has {} dimensions, and HDF5 holds up to {}",
                        unishard::quote(tensor.label()), tensor.shape.size(), kDimensions));
    }
  }
}

std::unordered_map<std::string_view, std::size_t> index_names(
    const std::vector<std::string>& names) {
  std::unordered_map<std::string_view, std::size_t> index;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!index.emplace(names[i], i).second) {
      raise(ErrorCode::InvalidArgument,
            fmt::format("an HDF5 file holds one data set of a name, and two tensors would be {}",
                        unishard::quote(names[i])));
    }
  }
  return index;
}

/// Places tensors under their flat paths. The second names of tied tensors are links to the same
/// data set.
Draft make_draft(const Catalog& catalog) {
  check_dimensions(catalog);
  Draft draft;
  const std::vector<std::string> names = flat_paths(catalog, "");
  if (needs_text(catalog)) draft.text = catalog_text(catalog, names);
  draft.file.text_bytes = draft.text.size();
  const auto index = index_names(names);
  std::vector<std::string_view> all(names.begin(), names.end());
  std::vector<std::size_t> targets;
  for (const Alias& alias : catalog.aliases) {
    const auto target = index.find(alias.target);
    if (target == index.end() || index.contains(alias.fqn)) {
      if (draft.text.empty()) {
        draft.notes.push_back(
            fmt::format("{}: a second name of {}, which is not written", alias.fqn, alias.target));
      }
      continue;
    }
    all.push_back(alias.fqn);
    targets.push_back(target->second);
  }
  const std::vector<std::string> paths = hdf5::link_paths(all);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const TensorInfo& tensor = catalog.tensors[i];
    draft.file.data_sets.push_back(
        {paths[i], tensor.dtype, tensor.shape, paths[i] == names[i] ? "" : names[i]});
  }
  for (std::size_t i = 0; i < targets.size(); ++i) {
    draft.file.links.emplace_back(paths[names.size() + i], targets[i]);
    draft.file.data_sets[targets[i]].main_name = names[targets[i]];
  }
  return draft;
}

class Hdf5Sink final : public Sink {
 public:
  Hdf5Sink(Storage& storage, Path output, Catalog catalog, Draft draft)
      : partial_(storage, std::move(output), PartialOutput::Shape::File),
        catalog_(std::move(catalog)),
        notes_(std::move(draft.notes)),
        file_(storage.create(partial_.path())),
        offsets_(hdf5::fill_new_file(*file_, draft.file)) {
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
      const std::uint64_t elements = catalog_.tensors[i].elements();
      if (elements > 0) fragments_.push_back({static_cast<std::uint32_t>(i), {0, elements}});
    }
    file_->reserve(file_->size());
    if (!draft.text.empty()) file_->write_at(offsets_.text, std::as_bytes(std::span(draft.text)));
  }

  const std::vector<Fragment>& fragments() const override { return fragments_; }

  void write(std::size_t fragment, ElementRange range, std::span<const std::byte> bytes) override {
    const std::size_t tensor = fragments_.at(fragment).tensor;
    file_->write_at(
        offsets_.data_sets[tensor] + range.begin * size_of(catalog_.tensors[tensor].dtype), bytes);
  }

  std::string seal() override {
    file_->sync();
    file_->close();
    return {};
  }
  Path complete(std::span<const std::string> /*seals*/) override { return partial_.path(); }
  void publish() override { partial_.publish(); }

  std::vector<std::string> notes() const override { return notes_; }

 private:
  PartialOutput partial_;  // before the file: it removes it after it is closed
  const Catalog catalog_;
  const std::vector<std::string> notes_;
  std::vector<Fragment> fragments_;
  const std::unique_ptr<File> file_;
  const hdf5::NewFileOffsets offsets_;
};

/// The sink of the processes that write nothing.
class IdleSink final : public Sink {
 public:
  const std::vector<Fragment>& fragments() const override { return none_; }
  void write(std::size_t, ElementRange, std::span<const std::byte>) override {
    raise(ErrorCode::Internal, "written to a sink that wants nothing");
  }
  std::string seal() override { return {}; }
  Path complete(std::span<const std::string>) override {
    raise(ErrorCode::Internal, "a process that wrote nothing completes the result");
  }
  void publish() override {
    raise(ErrorCode::Internal, "a process that wrote nothing publishes the result");
  }

 private:
  const std::vector<Fragment> none_;
};

}  // namespace

std::unique_ptr<Sink> make_hdf5_sink(Storage& storage, Path output, Catalog catalog,
                                     const WorkSplit& share) {
  if (share.rank != 0) return std::make_unique<IdleSink>();
  Draft draft = make_draft(catalog);
  return std::make_unique<Hdf5Sink>(storage, std::move(output), std::move(catalog),
                                    std::move(draft));
}

}  // namespace unishard::converters
