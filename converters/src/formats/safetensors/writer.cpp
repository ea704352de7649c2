// Files are written under a staging name and appear by one rename. All sizes are known, so a file's
// header is complete before its first tensor, and several threads may write tensors in any order.
// Process 0 creates the files with their headers; each process then opens the files that contain
// its range of bytes. Ranges are split at multiples of the storage's blocks, so that no two
// processes write to the same block.
#include "unishard/converters/sink.hpp"
#include "unishard/format/checked.hpp"
#include "unishard/format/io.hpp"
#include "unishard/format/json.hpp"

#include "containers/safetensors_header.hpp"
#include "core/embedded_catalog.hpp"
#include "core/file_records.hpp"
#include "core/file_split.hpp"
#include "core/partial_output.hpp"
#include "reading/quantizers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

namespace unishard::converters {
namespace {

using safetensors::Metadata;
using SubBytes = std::vector<std::optional<safetensors::SubByteType>>;

/// Removes the metadata of a safetensors file from `producer`, and adds those to `metadata` whose
/// keys it does not have.
void take_metadata(Json& producer, Metadata& metadata) {
  const Json present = file_record(producer, kSafetensorsMetadata);
  if (!present.is_object() || !std::ranges::all_of(present, &Json::is_string)) return;
  const Json kept = take_file_record(producer, kSafetensorsMetadata);
  for (const auto& [key, value] : kept.items()) {
    if (std::ranges::find(metadata, key, &Metadata::value_type::first) == metadata.end())
      metadata.emplace_back(key, value.get<std::string>());
  }
}

/// Adds the second names as {second: first}, the form of save_model() of safetensors.
void add_aliases(const std::vector<Alias>& aliases, Metadata& metadata) {
  for (const Alias& alias : aliases) {
    std::erase_if(metadata, [&](const auto& entry) { return entry.first == alias.fqn; });
    metadata.emplace_back(alias.fqn, alias.target);
  }
}

/// "format" first, because transformers refuses files without it; the rest in order of the keys.
Metadata complete_metadata(Metadata metadata) {
  std::sort(metadata.begin(), metadata.end());
  std::erase_if(metadata, [](const auto& entry) { return entry.first == "format"; });
  metadata.insert(metadata.begin(), {"format", "pt"});
  return metadata;
}

class SafetensorsSink final : public Sink {
 public:
  SafetensorsSink(Storage& storage, const Path& output, Catalog catalog, SubBytes sub_bytes,
                  SafetensorsOptions options, const WorkSplit& share)
      : storage_(storage),
        is_folder_(options.max_shard_bytes != 0),
        side_files_(std::move(options.side_files)),
        stem_(std::move(options.stem)),
        partial_(storage, output,
                 is_folder_ ? PartialOutput::Shape::Folder : PartialOutput::Shape::File, share),
        share_(share),
        catalog_(std::move(catalog)),
        sub_bytes_(std::move(sub_bytes)),
        metadata_(complete_metadata(std::move(options.metadata))) {
    places_.resize(catalog_.tensors.size());
    create_files(options.max_shard_bytes);
    take_share();
    std::ranges::sort(fragments_, {}, [this](const Fragment& fragment) {  // front to back
      return std::pair(places_[fragment.tensor].file, places_[fragment.tensor].offset);
    });
  }

  const std::vector<Fragment>& fragments() const override { return fragments_; }

  void write(std::size_t fragment, ElementRange range, std::span<const std::byte> bytes) override {
    const std::size_t tensor = fragments_.at(fragment).tensor;
    const Place& place = places_[tensor];
    files_[place.file]->write_at(
        place.offset + range.begin * size_of(catalog_.tensors[tensor].dtype), bytes);
  }

  std::string seal() override {
    for (auto& file : files_) {
      if (!file) continue;
      file->sync();
      file->close();
    }
    return {};
  }

  Path complete(std::span<const std::string> /*seals*/) override {
    if (is_folder_ && file_names_.size() > 1) write_index();
    for (const auto& [name, content] : side_files_)
      replace_text(storage_, partial_.path() / name, content);
    partial_.sync();
    return partial_.path();
  }
  void publish() override { partial_.publish(); }

 private:
  struct Place {
    std::size_t file = 0;
    std::uint64_t offset = 0;
  };

  void create_files(std::uint64_t max_shard_bytes) {
    std::vector<std::uint64_t> sizes;
    sizes.reserve(catalog_.tensors.size());
    for (const TensorInfo& tensor : catalog_.tensors) sizes.push_back(tensor.bytes());
    const auto split =
        safetensors::split_files(sizes, is_folder_ ? max_shard_bytes : ~std::uint64_t{0});
    for (std::size_t i = 0; i < split.size(); ++i) {
      file_names_.push_back(safetensors::model_file_name(i, split.size(), stem_));
      create_file(path_of(i), split[i]);
    }
  }

  void create_file(const Path& path, const std::vector<std::size_t>& tensors) {
    std::vector<safetensors::HeaderEntry> entries;
    for (const std::size_t tensor : tensors) {
      const TensorInfo& info = catalog_.tensors[tensor];
      entries.push_back({.name = info.fqn,
                         .dtype = info.dtype,
                         .shape = info.shape,
                         .sub_byte = sub_bytes_[tensor]});
    }
    const std::string header = safetensors::encode_header(entries, metadata_);
    std::unordered_map<std::string_view, std::uint64_t> offsets;
    for (const safetensors::HeaderEntry& entry : entries) offsets.emplace(entry.name, entry.begin);
    for (const std::size_t tensor : tensors) {
      places_[tensor] = {files_.size(), header.size() + offsets.at(catalog_.tensors[tensor].fqn)};
    }
    std::uint64_t bytes = header.size();
    for (const std::size_t tensor : tensors) bytes += catalog_.tensors[tensor].bytes();
    file_bytes_.push_back(bytes);
    files_.emplace_back();
    if (share_.rank != 0) return;
    files_.back() = storage_.create(path);
    files_.back()->reserve(bytes);
    files_.back()->write_at(0, std::as_bytes(std::span(header)));
    if (share_.size == 1) return;
    files_.back()->sync();  // and it holds more than zeros when it is opened again
    files_.back()->close();
    files_.back().reset();
  }

  /// Fills fragments_ and opens their files. This process's bytes are a range of all files one
  /// after the other, each beginning a new block.
  void take_share() {
    std::vector<std::uint64_t> begins;
    std::uint64_t total = 0;
    for (const std::uint64_t bytes : file_bytes_) {
      begins.push_back(total);
      total = checked_add(total, round_up(bytes, kBlockBytes, "model"), "model");
    }
    const ByteRun run = owned_run(total, kBlockBytes, share_);
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
      const std::uint64_t width = size_of(catalog_.tensors[i].dtype);
      const std::uint64_t begin = begins[places_[i].file] + places_[i].offset;
      const auto [first, end] = run.elements_in(begin, width, catalog_.tensors[i].elements());
      const ElementRange range{first, end};
      if (range.empty()) continue;
      fragments_.push_back({static_cast<std::uint32_t>(i), range});
      auto& file = files_[places_[i].file];
      if (!file) file = storage_.open_for_update(path_of(places_[i].file));
    }
  }

  Path path_of(std::size_t file) const {
    return is_folder_ ? partial_.path() / file_names_[file] : partial_.path();
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
    replace_text(storage_, partial_.path() / (stem_ + ".safetensors.index.json"),
                 index.dump(2) + "\n");
  }

  Storage& storage_;
  const bool is_folder_;
  const SideFiles side_files_;
  const std::string stem_;
  PartialOutput partial_;  // before the files: it removes them after they are closed
  const WorkSplit share_;
  const Catalog catalog_;
  const SubBytes sub_bytes_;  ///< one per tensor
  const Metadata metadata_;
  std::vector<Fragment> fragments_;
  std::vector<Place> places_;  ///< one per tensor
  std::vector<std::string> file_names_;
  std::vector<std::uint64_t> file_bytes_;
  std::vector<std::unique_ptr<File>> files_;  ///< null where nothing is this process's
};

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

}  // namespace

std::unique_ptr<Sink> make_safetensors_sink(Storage& storage, const Path& output, Catalog catalog,
                                            SafetensorsOptions options, const WorkSplit& share) {
  SubBytes sub_bytes = safetensors::recorded_types(catalog);
  forget_missing_of_torchao(catalog);
  take_metadata(catalog.producer, options.metadata);
  if (needs_text(catalog)) {
    const std::vector<std::string> paths = flat_paths(catalog, "");
    options.metadata.emplace_back(kCatalogKey, catalog_text(catalog, paths));
    for (std::size_t i = 0; i < paths.size(); ++i) catalog.tensors[i].fqn = paths[i];
  } else {
    add_aliases(catalog.aliases, options.metadata);
  }
  check_names(catalog);
  return std::make_unique<SafetensorsSink>(storage, output, std::move(catalog),
                                           std::move(sub_bytes), std::move(options), share);
}

}  // namespace unishard::converters
