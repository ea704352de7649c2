#include "formats/dcp/folder_files.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace unishard::converters::dcp {

FolderFiles::FolderFiles(Storage& storage, const std::shared_ptr<FilePool>& pool,
                         const Path& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    files_.push_back(torch::open_window(pool, checked_path(storage, folder, name)));
    if (!looks_like_safetensors(*files_.back().file)) continue;
    // The offsets in the metadata have no meaning for such a file, because it has a table of its
    // own.
    for (SafetensorsPiece& piece : read_pieces(files_.back().file).pieces) {
      pieces_[static_cast<std::uint32_t>(files_.size() - 1)].emplace(piece.key, std::move(piece));
    }
  }
}

std::uint32_t FolderFiles::add_item(const StoredItem& item, const std::string& key, Items& items) {
  const auto& [file, begin, size] = files_[item.file];
  if (item.offset > size || item.length > size - item.offset) {
    raise(
        ErrorCode::Corrupt,
        fmt::format("its item is {} bytes at byte {} of {}, which has {} (was the file cut short?)",
                    item.length, item.offset, file->path().string(), size));
  }
  claim(item, key);
  return items.add(torch::Window{file, item.offset, item.length}, item.packing);
}

std::uint32_t FolderFiles::add_chunk(const StoredTensor& tensor, const StoredChunk& chunk,
                                     Items& items) {
  const auto table = pieces_.find(chunk.item.file);
  if (table == pieces_.end()) return add_item(chunk.item, tensor.key, items);
  const auto piece = table->second.find(tensor.key);
  if (piece == table->second.end() || !(piece->second.box == chunk.box)) {
    raise(ErrorCode::Corrupt,
          fmt::format("{} does not hold its chunk at ({})", files_[chunk.item.file].name(),
                      fmt::join(chunk.box.offsets, ", ")));
  }
  named_[chunk.item.file].insert(tensor.key);
  return items.add(piece->second.view);
}

void FolderFiles::check_places(const Path& folder, const Metadata& metadata, bool are_all,
                               std::vector<std::string>& notes) {
  for (const StoredItem& empty : metadata.empty)
    taken_[empty.file].emplace(empty.offset, Taken{empty.offset + empty.length, {}});
  std::set<std::uint32_t> incomplete;
  for (const auto& [file, taken] : taken_) {
    const bool has_own_table = pieces_.contains(file);
    if (!has_own_table && has_unnamed_bytes(file)) incomplete.insert(file);
  }
  for (const auto& [file, pieces] : pieces_) {
    if (has_unnamed_pieces(file)) incomplete.insert(file);
  }
  for (const Shared& shared : shared_) {
    const std::string what =
        fmt::format("{} and {} are at one place of {}", unishard::quote(shared.first),
                    unishard::quote(shared.second), files_[shared.file].name());
    if (incomplete.contains(shared.file)) {
      raise(ErrorCode::Corrupt,
            fmt::format("{}: {}, and other bytes of the file have no name: the item of one of the "
                        "two is lost",
                        folder.string(), what),
            "the metadata is damaged: use a copy or another checkpoint");
    }
    notes.push_back(fmt::format("{}: one tensor with two names", what));
  }
  for (const std::uint32_t file : incomplete) {
    if (are_all)
      notes.push_back(
          fmt::format("{} has bytes that the metadata gives no name: an item that is not read",
                      files_[file].name()));
  }
}

/// A file with a table of its own names its tensors, which the metadata may have lost.
bool FolderFiles::has_unnamed_pieces(std::uint32_t file) const {
  const auto named = named_.find(file);
  return std::ranges::any_of(pieces_.at(file), [&](const auto& piece) {
    const bool is_named = named != named_.end() && named->second.contains(piece.first);
    return !is_named && piece.second.box.elements() > 0;
  });
}

/// A link could lead out of the folder, so links are not followed.
Path FolderFiles::checked_path(Storage& storage, const Path& folder, const std::string& relative) {
  Path at = folder;
  for (const Path& part : Path(relative)) {
    auto [listing, is_new] = listings_.try_emplace(at.string());
    if (is_new) {
      for (const Entry& entry : storage.list(at)) listing->second.emplace(entry.name, entry.kind);
    }
    at /= part;
    const auto found = listing->second.find(part.string());
    if (found == listing->second.end()) {
      raise(ErrorCode::Corrupt, fmt::format("{} is missing; the metadata names it", at.string()),
            "copy the folder again, with all of its files");
    }
    if (found->second == EntryKind::Other) {
      raise(ErrorCode::Corrupt,
            fmt::format("{} is a link or no regular file: not followed", at.string()),
            "put the file itself there");
    }
  }
  return at;
}

/// Writers put items one behind the other. Two names may share one, but no part of one.
void FolderFiles::claim(const StoredItem& item, const std::string& key) {
  if (item.length == 0) return;
  auto& taken = taken_[item.file];
  const std::uint64_t end = item.offset + item.length;
  const auto next = taken.lower_bound(item.offset);
  if (next != taken.end() && next->first == item.offset && next->second.end == end) {
    shared_.push_back({item.file, next->second.key, key});
    return;
  }
  if ((next != taken.end() && next->first < end) ||
      (next != taken.begin() && std::prev(next)->second.end > item.offset)) {
    raise(ErrorCode::Corrupt,
          fmt::format("its item, {} bytes at byte {} of {}, overlaps another one", item.length,
                      item.offset, files_[item.file].name()),
          "the metadata is damaged: use a copy or another checkpoint");
  }
  taken.emplace_hint(next, item.offset, Taken{end, key});
}

/// Returns whether a file has bytes that no item has.
bool FolderFiles::has_unnamed_bytes(std::uint32_t file) const {
  std::uint64_t at = 0;
  for (const auto& [begin, taken] : taken_.at(file)) {
    if (begin > at) return true;
    at = std::max(at, taken.end);
  }
  return at != files_[file].size;
}

}  // namespace unishard::converters::dcp
