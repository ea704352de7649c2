#include "formats/safetensors/reader.hpp"

#include "unishard/format/error.hpp"

#include "containers/equal_elements.hpp"
#include "containers/safetensors_header.hpp"
#include "core/embedded_catalog.hpp"
#include "core/file_records.hpp"
#include "core/read_counts.hpp"
#include "core/training_files.hpp"
#include "core/wrapped_names.hpp"
#include "formats/safetensors/model_folder.hpp"
#include "reading/completeness.hpp"

#include <fmt/format.h>

#include <map>
#include <unordered_map>

namespace unishard::converters {
namespace {

using safetensors::Header;
using safetensors::ModelFolder;

class SafetensorsSource final : public Source {
 public:
  SafetensorsSource(Storage& storage, const Path& path) {
    Json notes = Json::array();
    if (storage.kind(path) == EntryKind::Directory) {
      const ModelFolder model = safetensors::read_model_folder(storage, path);
      may_repeat_ = model.is_joined_by_names();
      notes_ = model.notes;
      for (const std::string& name : model.files) add_file(storage, path / name, notes);
      if (model.index) check_index(storage, path, model);
      losses_ = unread_training_files(storage, path);
      for (Loss& loss : unread_models(storage, path, model.files))
        losses_.push_back(std::move(loss));
    } else {
      add_file(storage, path, notes);
    }
    if (const auto text = metadata_.extract(std::string(kCatalogKey)); !text.empty()) {
      restore_catalog(text.mapped(), catalog_, path.string() + ": " + std::string(kCatalogKey));
      const bool says_more = metadata_.size() > metadata_.count("format");
      if (says_more) record_metadata();
      record_sub_bytes();
      unwrap_restored(catalog_, "safetensors");
      return;
    }
    take_aliases();
    catalog_.producer = Json::object();
    if (!metadata_.empty()) record_metadata();
    if (!notes.empty()) catalog_.producer["notes"] = std::move(notes);
    record_sub_bytes();
    unwrap_names(catalog_, "safetensors");
  }

  std::string format() const override { return "safetensors"; }
  const Catalog& catalog() const override { return catalog_; }

  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    const Place& place = places_.at(tensor);
    const std::uint64_t element_bytes = size_of(catalog_.tensors[tensor].dtype);
    files_[place.file]->read_at(place.offset + range.begin * element_bytes, out);
    counts_.add(false, out.size());
  }
  Losses own_losses() const override { return losses_; }
  std::vector<std::string> notes() const override { return notes_; }
  std::vector<std::string> own_remarks() const override { return remarks_; }
  InputCheck compare_checksums(const TransferOptions&, const ReadPeers&) const override {
    return counts_.result();
  }

 private:
  struct Place {
    std::size_t file = 0;
    std::uint64_t offset = 0;
  };

  void add_file(Storage& storage, const Path& path, Json& notes) {
    files_.push_back(storage.open(path));
    Header header = safetensors::read_header(*files_.back());
    const std::size_t before = places_.size();
    for (safetensors::HeaderEntry& entry : header.entries) {
      const auto [earlier, is_new] = by_name_.emplace(entry.name, places_.size());
      if (!is_new) {
        if (may_repeat_ && is_copy(entry, header.data_offset, earlier->second)) continue;
        raise(ErrorCode::Corrupt,
              fmt::format("tensor {} is in both {} and {}", unishard::quote(entry.name),
                          files_[places_[earlier->second].file]->path().string(), path.string()));
      }
      places_.push_back({files_.size() - 1, header.data_offset + entry.begin});
      TensorInfo tensor;
      tensor.fqn = std::move(entry.name);
      tensor.state = state::kWeights;
      tensor.dtype = entry.dtype;
      tensor.shape = std::move(entry.shape);
      sub_bytes_.push_back(std::move(entry.sub_byte));
      catalog_.tensors.push_back(std::move(tensor));
    }
    if (places_.size() == before && !header.entries.empty()) raise_copy_of_others(path);
    for (const auto& [key, value] : header.metadata) metadata_[key] = value;
    for (const std::string& note : header.notes) {
      notes.push_back(fmt::format("{}: {}", path.filename().string(), note));
    }
  }

  /// Compares a tensor of the last file with the one that has its name.
  bool is_copy(const safetensors::HeaderEntry& entry, std::uint64_t data_offset,
               std::size_t earlier) const {
    const TensorInfo& known = catalog_.tensors[earlier];
    if (known.dtype != entry.dtype || known.shape != entry.shape ||
        sub_bytes_[earlier].has_value() != entry.sub_byte.has_value())
      return false;
    const Place& place = places_[earlier];
    return equal_bytes(*files_[place.file], place.offset, *files_.back(), data_offset + entry.begin,
                       known.bytes());
  }

  /// Says which file has a tensor, where one has.
  template <class Found>
  std::string place_of(const Found& found) const {
    if (found == by_name_.end()) return {};
    const Path& path = files_[places_[found->second].file]->path();
    return fmt::format(": {} has it", unishard::quote(path.filename().string()));
  }

  /// Checks that the index and the files agree.
  void check_index(Storage& storage, const Path& folder, const ModelFolder& model) const {
    const auto fail = [&](const std::string& problem) {
      raise(ErrorCode::Corrupt, fmt::format("{}: {}", (folder / *model.index).string(), problem),
            std::string(kOtherIndexHint));
    };
    for (const auto& [tensor, file] : model.weight_map) {
      const auto found = by_name_.find(tensor);
      if (found == by_name_.end() ||
          files_[places_[found->second].file]->path().filename() != file) {
        fail(fmt::format("tensor {} is not in {}, where the index lists it{}",
                         unishard::quote(tensor), unishard::quote(file), place_of(found)));
      }
    }
    for (const TensorInfo& tensor : catalog_.tensors) {
      if (!model.weight_map.contains(tensor.fqn)) {
        fail(fmt::format(
            "tensor {} is in {}, and the index does not list it", unishard::quote(tensor.fqn),
            files_[places_[by_name_.at(tensor.fqn)].file]->path().filename().string()));
      }
    }
    if (!catalog_.tensors.empty()) return;
    for (const Entry& entry : storage.list(folder)) {
      if (entry.name.ends_with(".safetensors")) {
        fail(fmt::format("it lists no tensor, though there is {}", unishard::quote(entry.name)));
      }
    }
  }

  void record_metadata() {
    if (catalog_.producer.is_null()) catalog_.producer = Json::object();
    if (catalog_.producer.is_object())
      catalog_.producer[std::string(kSafetensorsMetadata)] = metadata_;
  }

  void record_sub_bytes() {
    safetensors::record_types(catalog_, sub_bytes_);
    for (std::size_t i = 0; i < sub_bytes_.size(); ++i) {
      if (!sub_bytes_[i]) continue;
      remarks_.push_back(fmt::format("{}: elements of type {} are kept packed in bytes (uint8)",
                                     unishard::quote(catalog_.tensors[i].label()),
                                     sub_bytes_[i]->dtype));
    }
  }

  static bool may_be_name(const std::string& text) {
    return !text.empty() && text.size() <= limits::kNameBytes &&
           text.find('\0') == std::string::npos;
  }

  /// Both names of a tied tensor may be gone, where they are names of the model's modules.
  void doubt_lost_pair(const std::string& second, const std::string& first) {
    const auto ends = [](const std::string& name) {
      return name.ends_with(".weight") || name.ends_with(".bias");
    };
    if (ends(second) && ends(first) && !by_name_.contains(first) && !by_name_.contains(second))
      losses_.push_back({Role::Weight, first,
                         fmt::format("the metadata says that {} is its second name, and neither is "
                                     "in the file",
                                     unishard::quote(second))});
  }

  /// `save_model` of safetensors notes a tied name as metadata {removed: kept}.
  void take_aliases() {
    std::erase_if(metadata_, [this](const auto& entry) {
      const bool is_alias = may_be_name(entry.first) && by_name_.contains(entry.second) &&
                            !by_name_.contains(entry.first);
      doubt_lost_pair(entry.first, entry.second);
      if (!is_alias) return false;
      catalog_.aliases.push_back({entry.first, entry.second});
      if (entry.first.find('.') == std::string::npos)
        remarks_.push_back(fmt::format("{} is taken for a second name of {}: the metadata says so",
                                       entry.first, entry.second));
      return true;
    });
  }

  Losses losses_;
  std::vector<std::string> notes_, remarks_;
  bool may_repeat_ = false;  ///< a tensor may be in several files, if it is the same in all
  Catalog catalog_;
  mutable ReadCounts counts_;
  std::vector<std::unique_ptr<File>> files_;
  std::vector<Place> places_;                                       ///< one per tensor
  std::vector<std::optional<safetensors::SubByteType>> sub_bytes_;  ///< one per tensor
  std::unordered_map<std::string, std::size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace

std::unique_ptr<Source> open_safetensors(Storage& storage, const Path& path) {
  return std::make_unique<SafetensorsSource>(storage, path);
}

}  // namespace unishard::converters
