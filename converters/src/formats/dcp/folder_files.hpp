#pragma once
// The data files that one `.metadata` of DCP names, and where in them its items are.
#include "unishard/format/storage.hpp"

#include "containers/zip_reader.hpp"
#include "core/file_pool.hpp"
#include "formats/dcp/metadata.hpp"
#include "formats/dcp/safetensors_pieces.hpp"
#include "formats/dcp/stored_items.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace unishard::converters::dcp {

class FolderFiles {
 public:
  /// Throws: NotFound when a file is missing; Corrupt when one is a link or no file.
  FolderFiles(Storage& storage, const std::shared_ptr<FilePool>& pool, const Path& folder,
              const std::vector<std::string>& names);

  /// Adds the item of `key` to `items`.
  /// Throws: Corrupt when it ends behind its file or overlaps another one.
  std::uint32_t add_item(const StoredItem& item, const std::string& key, Items& items);
  std::uint32_t add_chunk(const StoredTensor& tensor, const StoredChunk& chunk, Items& items);

  /// Notes bytes of the files that no item has, and items with two names. Writers put items one
  /// behind the other, so that bytes without a name are those of an item that the metadata has
  /// lost. `are_all`: every item was added.
  /// Throws: Corrupt, naming both, when two names have one item in such a file.
  void check_places(const Path& folder, const Metadata& metadata, bool are_all,
                    std::vector<std::string>& notes);

 private:
  struct Taken {
    std::uint64_t end = 0;
    std::string key;
  };
  struct Shared {
    std::uint32_t file = 0;
    std::string first, second;  // keys
  };

  Path checked_path(Storage& storage, const Path& folder, const std::string& relative);
  void claim(const StoredItem& item, const std::string& key);
  bool has_unnamed_bytes(std::uint32_t file) const;
  bool has_unnamed_pieces(std::uint32_t file) const;

  std::vector<torch::Window> files_;
  std::map<std::uint32_t, std::map<std::uint64_t, Taken>> taken_;  // by the begin of the item
  std::vector<Shared> shared_;
  std::map<std::uint32_t, std::map<std::string, SafetensorsPiece>> pieces_;
  std::map<std::uint32_t, std::set<std::string>> named_;  // keys of pieces that were added
  std::map<std::string, std::map<std::string, EntryKind>> listings_;
};

}  // namespace unishard::converters::dcp
