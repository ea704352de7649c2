// Everything is written beside its final name and appears by one rename. A file's header is
// complete before its first tensor, since all sizes are known, so tensors go to their places in any
// order and from any thread.
#include "unishard/converters/sink.hpp"
#include "unishard/format/checked.hpp"
#include "unishard/format/commit.hpp"
#include "unishard/format/json.hpp"

#include "safetensors/file_split.hpp"
#include "safetensors/header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

namespace unishard::converters {
namespace {

using safetensors::Metadata;

constexpr std::string_view kPartial = ".partial-";
constexpr std::size_t kSaveIdDigits = 32;

/// "format" first, because transformers refuses files without it; the rest in order of the keys.
Metadata complete_metadata(Metadata metadata) {
  std::sort(metadata.begin(), metadata.end());
  std::erase_if(metadata, [](const auto& entry) { return entry.first == "format"; });
  metadata.insert(metadata.begin(), {"format", "pt"});
  return metadata;
}

class SafetensorsSink final : public Sink {
 public:
  SafetensorsSink(Storage& storage, Path output, Catalog catalog, SafetensorsOptions options)
      : storage_(storage),
        output_(std::move(output)),
        staging_(output_.string() + std::string(kPartial) + new_save_id()),
        catalog_(std::move(catalog)),
        metadata_(complete_metadata(std::move(options.metadata))),
        is_folder_(options.max_shard_bytes != 0) {
    places_.resize(catalog_.tensors.size());
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
      const std::uint64_t elements = catalog_.tensors[i].elements();
      if (elements > 0) fragments_.push_back({static_cast<std::uint32_t>(i), {0, elements}});
    }
    try {
      create_files(options.max_shard_bytes);
    } catch (...) {
      discard();
      throw;
    }
  }

  ~SafetensorsSink() override {
    if (!committed_) discard();
  }

  const std::vector<Fragment>& fragments() const override { return fragments_; }

  void write(std::size_t fragment, ElementRange range, std::span<const std::byte> bytes) override {
    const std::size_t tensor = fragments_.at(fragment).tensor;
    const Place& place = places_[tensor];
    files_[place.file]->write_at(
        place.offset + range.begin * size_of(catalog_.tensors[tensor].dtype), bytes);
  }

  void commit() override {
    for (auto& file : files_) {
      file->sync();
      file->close();
    }
    if (is_folder_) {
      if (file_names_.size() > 1) write_index();
      storage_.sync_directory(staging_);
    } else if (storage_.kind(output_) != EntryKind::Missing) {
      raise(ErrorCode::AlreadyExists, fmt::format("{} was created meanwhile", output_.string()));
    }
    storage_.rename(staging_, output_);
    committed_ = true;
    storage_.sync_directory(output_.has_parent_path() ? output_.parent_path() : Path("."));
  }

 private:
  struct Place {
    std::size_t file = 0;
    std::uint64_t offset = 0;
  };

  void create_files(std::uint64_t max_shard_bytes) {
    std::vector<std::uint64_t> sizes;
    for (const TensorInfo& tensor : catalog_.tensors) sizes.push_back(tensor.bytes());
    const auto split =
        safetensors::split_files(sizes, is_folder_ ? max_shard_bytes : ~std::uint64_t{0});
    if (is_folder_) storage_.create_directory(staging_);
    for (std::size_t i = 0; i < split.size(); ++i) {
      file_names_.push_back(safetensors::model_file_name(i, split.size()));
      create_file(is_folder_ ? staging_ / file_names_.back() : staging_, split[i]);
    }
  }

  void create_file(const Path& path, const std::vector<std::size_t>& tensors) {
    std::vector<safetensors::Entry> entries;
    for (const std::size_t tensor : tensors) {
      const TensorInfo& info = catalog_.tensors[tensor];
      entries.push_back({.name = info.fqn, .dtype = info.dtype, .shape = info.shape});
    }
    const std::string header = safetensors::encode_header(entries, metadata_);
    std::unordered_map<std::string_view, std::uint64_t> offsets;
    for (const safetensors::Entry& entry : entries) offsets.emplace(entry.name, entry.begin);
    for (const std::size_t tensor : tensors) {
      places_[tensor] = {files_.size(), header.size() + offsets.at(catalog_.tensors[tensor].fqn)};
    }
    files_.push_back(storage_.create(path));
    files_.back()->write_at(0, std::as_bytes(std::span(header)));
  }

  void write_index() {
    std::uint64_t total_bytes = 0;
    std::uint64_t total_elements = 0;
    std::map<std::string, std::string> weight_map;  // sorted, as transformers writes it
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
      total_bytes += catalog_.tensors[i].bytes();
      total_elements += catalog_.tensors[i].elements();
      weight_map[catalog_.tensors[i].fqn] = file_names_[places_[i].file];
    }
    const SortedJson index = {
        {"metadata", {{"total_parameters", total_elements}, {"total_size", total_bytes}}},
        {"weight_map", weight_map}};
    replace_text(storage_, staging_ / "model.safetensors.index.json", index.dump(2) + "\n");
  }

  void discard() noexcept {
    files_.clear();
    try {
      storage_.remove_tree(staging_);
    } catch (...) {
      // The staging path carries ".partial-" in its name: nothing takes it for a result.
    }
  }

  Storage& storage_;
  const Path output_;
  const Path staging_;
  const Catalog catalog_;
  const Metadata metadata_;
  const bool is_folder_;
  std::vector<Fragment> fragments_;
  std::vector<Place> places_;  ///< one per tensor
  std::vector<std::string> file_names_;
  std::vector<std::unique_ptr<File>> files_;
  bool committed_ = false;
};

void check_free(Storage& storage, const Path& output, bool is_folder) {
  const EntryKind kind = storage.kind(output);
  if (kind == EntryKind::Missing) return;
  if (is_folder && kind == EntryKind::Directory && storage.list(output).empty()) return;
  raise(
      ErrorCode::AlreadyExists,
      fmt::format("{} {}", output.string(),
                  is_folder && kind == EntryKind::Directory ? "is not empty" : "is there already"),
      "choose another output, or remove it first; nothing was overwritten");
}

void check_names(const Catalog& catalog) {
  std::unordered_set<std::string_view> names;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (tensor.fqn == "__metadata__") {
      raise(ErrorCode::Unsupported, "safetensors cannot hold a tensor called __metadata__");
    }
    if (!names.insert(tensor.fqn).second) {
      raise(ErrorCode::InvalidArgument,
            fmt::format("safetensors holds one state per parameter, and {} has several",
                        unishard::quote(tensor.fqn)));
    }
  }
}

/// What a killed run of the same output left: nobody else clears it up.
void remove_leftovers(Storage& storage, const Path& output) {
  const Path parent = output.has_parent_path() ? output.parent_path() : Path(".");
  const std::string prefix = output.filename().string() + std::string(kPartial);
  for (const Entry& entry : storage.list(parent)) {
    if (entry.name.starts_with(prefix) && entry.name.size() == prefix.size() + kSaveIdDigits) {
      storage.remove_tree(parent / entry.name);
    }
  }
}

}  // namespace

std::unique_ptr<Sink> make_safetensors_sink(Storage& storage, Path output, Catalog catalog,
                                            SafetensorsOptions options) {
  if (!output.has_filename()) output = output.parent_path();  // "folder/"
  check_names(catalog);
  check_free(storage, output, options.max_shard_bytes != 0);
  if (output.has_parent_path()) storage.make_directory(output.parent_path());
  remove_leftovers(storage, output);
  return std::make_unique<SafetensorsSink>(storage, std::move(output), std::move(catalog),
                                           std::move(options));
}

}  // namespace unishard::converters
