#include "recording_storage.hpp"

#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <functional>
#include <utility>

namespace unishard::test {

using Kind = Operation::Kind;

std::uint64_t Content::crc64() {
  if (!digest) digest = unishard::crc64(bytes);
  return *digest;
}

void apply_data(const Operation& operation, std::string& bytes) {
  if (operation.kind == Kind::Resize) return bytes.resize(operation.offset);
  const std::string& data = *operation.data;
  bytes.resize(std::max<std::size_t>(bytes.size(), operation.offset + data.size()));
  std::memcpy(bytes.data() + operation.offset, data.data(), data.size());
}

class RecordingFile final : public File {
 public:
  RecordingFile(RecordingStorage& storage, Path path, InodePtr inode)
      : storage_(storage), path_(std::move(path)), inode_(std::move(inode)) {}

  std::uint64_t size() const override {
    const std::scoped_lock lock(storage_.mutex_);
    return inode_->content->bytes.size();
  }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    const std::scoped_lock lock(storage_.mutex_);
    const std::string& bytes = inode_->content->bytes;
    if (offset > bytes.size() || out.size() > bytes.size() - offset)
      raise(ErrorCode::Corrupt, fmt::format("{}: truncated", path_.string()));
    if (!out.empty()) std::memcpy(out.data(), bytes.data() + offset, out.size());
  }
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
    auto data = std::make_shared<const std::string>(reinterpret_cast<const char*>(bytes.data()),
                                                    bytes.size());
    change({.kind = Kind::Write,
            .offset = offset,
            .data = std::move(data),
            .text = fmt::format("write {} +{} {}", offset, bytes.size(), path_.string())});
  }
  void reserve(std::uint64_t bytes) override {
    if (bytes > size()) resize(bytes);
  }
  void resize(std::uint64_t bytes) override {
    change({.kind = Kind::Resize,
            .offset = bytes,
            .text = fmt::format("resize {} {}", bytes, path_.string())});
  }
  void sync() override {
    const std::scoped_lock lock(storage_.mutex_);
    storage_.note({.kind = Kind::SyncFile,
                   .inode = inode_->number,
                   .text = fmt::format("sync {}", path_.string())});
  }
  void close() override {}
  const Path& path() const override { return path_; }

 private:
  void change(Operation operation) {
    const std::scoped_lock lock(storage_.mutex_);
    if (inode_->content.use_count() > 1)
      inode_->content = std::make_shared<Content>(Content{inode_->content->bytes});
    inode_->content->digest.reset();
    operation.inode = inode_->number;
    apply_data(operation, inode_->content->bytes);
    storage_.note(std::move(operation));
  }

  RecordingStorage& storage_;
  const Path path_;
  const InodePtr inode_;
};

RecordingStorage::RecordingStorage()
    : RecordingStorage(std::make_shared<Inode>(Inode{.number = 1, .is_folder = true}), 1) {}

RecordingStorage::RecordingStorage(InodePtr root, std::uint64_t last_inode)
    : root_(std::move(root)), last_inode_(last_inode) {}

void RecordingStorage::start_journal(std::optional<std::size_t> dropped_sync) {
  recording_ = true;
  dropped_sync_ = dropped_sync;
}

void RecordingStorage::note_returned() {
  const std::scoped_lock lock(mutex_);
  note({.kind = Kind::Returned, .text = "returned"});
}

void RecordingStorage::note(Operation operation) {
  if (!recording_) return;
  if (operation.is_sync() && syncs_++ == dropped_sync_) {
    dropped_ = {std::move(operation), journal_.size()};
    return;
  }
  journal_.push_back(std::move(operation));
}

InodePtr RecordingStorage::find(const Path& path) const {
  InodePtr at = root_;
  for (const Path& part : path.relative_path()) {
    if (part.empty() || part == ".") continue;
    if (!at->is_folder) return nullptr;
    const auto found = at->entries.find(part.string());
    if (found == at->entries.end()) return nullptr;
    at = found->second;
  }
  return at;
}

InodePtr RecordingStorage::at(const Path& path) const {
  const std::scoped_lock lock(mutex_);
  return existing(path, "looking at");
}

InodePtr RecordingStorage::existing(const Path& path, const char* action) const {
  InodePtr inode = find(path);
  if (!inode) raise_errno(action, path.string(), ENOENT);
  return inode;
}

RecordingStorage::Place RecordingStorage::place_of(const Path& path, const char* action) const {
  InodePtr folder = existing(path.parent_path(), action);
  if (!folder->is_folder) raise_errno(action, path.string(), ENOTDIR);
  return {std::move(folder), path.filename().string()};
}

void RecordingStorage::add(const Place& place, InodePtr inode, const Path& path) {
  if (place.folder->entries.contains(place.name)) raise_errno("creating", path.string(), EEXIST);
  note({.kind = Kind::Link,
        .inode = place.folder->number,
        .name = place.name,
        .other = inode->number,
        .is_folder = inode->is_folder,
        .text = fmt::format("create {}", path.string())});
  place.folder->entries[place.name] = std::move(inode);
}

std::unique_ptr<File> RecordingStorage::open(const Path& path) {
  const std::scoped_lock lock(mutex_);
  InodePtr inode = existing(path, "opening");
  if (inode->is_folder)
    raise(ErrorCode::Corrupt, fmt::format("{} is not a regular file", path.string()));
  return std::make_unique<RecordingFile>(*this, path, std::move(inode));
}

std::unique_ptr<File> RecordingStorage::create(const Path& path) {
  const std::scoped_lock lock(mutex_);
  const InodePtr inode = std::make_shared<Inode>(
      Inode{.number = ++last_inode_, .content = std::make_shared<Content>()});
  add(place_of(path, "creating"), inode, path);
  return std::make_unique<RecordingFile>(*this, path, inode);
}

EntryKind RecordingStorage::kind(const Path& path) {
  const std::scoped_lock lock(mutex_);
  const InodePtr inode = find(path);
  if (!inode) return EntryKind::Missing;
  return inode->is_folder ? EntryKind::Directory : EntryKind::File;
}

std::vector<Entry> RecordingStorage::list(const Path& directory) {
  const std::scoped_lock lock(mutex_);
  const InodePtr folder = existing(directory, "listing");
  if (!folder->is_folder) raise_errno("listing", directory.string(), ENOTDIR);
  std::vector<Entry> entries;
  const std::int64_t now = std::time(nullptr);
  for (const auto& [name, inode] : folder->entries)
    entries.push_back({name, inode->is_folder ? EntryKind::Directory : EntryKind::File, now});
  return entries;
}

void RecordingStorage::make_directory(const Path& path) {
  if (kind(path) == EntryKind::Directory) return;
  if (path.has_parent_path() && path.parent_path() != path) make_directory(path.parent_path());
  create_directory(path);
}

void RecordingStorage::create_directory(const Path& path) {
  const std::scoped_lock lock(mutex_);
  add(place_of(path, "creating folder"),
      std::make_shared<Inode>(Inode{.number = ++last_inode_, .is_folder = true}), path);
}

void RecordingStorage::move(const Path& from, const Path& to, Kind kind) {
  const Place source = place_of(from, "renaming"), target = place_of(to, "renaming");
  note({.kind = kind,
        .inode = source.folder->number,
        .name = source.name,
        .other = target.folder->number,
        .other_name = target.name,
        .text = fmt::format("{} {} {}", kind == Kind::Rename ? "rename" : "exchange", from.string(),
                            to.string())});
  InodePtr moved = source.folder->entries.at(source.name);
  if (kind == Kind::Exchange) {
    std::swap(source.folder->entries.at(source.name), target.folder->entries.at(target.name));
  } else {
    source.folder->entries.erase(source.name);
    target.folder->entries[target.name] = std::move(moved);
  }
}

void RecordingStorage::rename(const Path& from, const Path& to) {
  const std::scoped_lock lock(mutex_);
  existing(from, "renaming");
  if (const InodePtr there = find(to); there && there->is_folder && !there->entries.empty())
    raise_errno("renaming", to.string(), ENOTEMPTY);
  move(from, to, Kind::Rename);
}

void RecordingStorage::rename_new(const Path& from, const Path& to) {
  const std::scoped_lock lock(mutex_);
  existing(from, "renaming");
  if (find(to)) raise_errno("renaming", to.string(), EEXIST);
  move(from, to, Kind::Rename);
}

void RecordingStorage::exchange(const Path& a, const Path& b) {
  const std::scoped_lock lock(mutex_);
  existing(a, "exchanging");
  existing(b, "exchanging");
  move(a, b, Kind::Exchange);
}

void RecordingStorage::hard_link(const Path& from, const Path& to) {
  const std::scoped_lock lock(mutex_);
  add(place_of(to, "linking"), existing(from, "linking"), to);
}

// Entry by entry, as a program does it.
void RecordingStorage::remove_below(const Place& place, const Path& path) {
  const InodePtr inode = place.folder->entries.at(place.name);
  while (!inode->entries.empty()) {
    const std::string name = inode->entries.begin()->first;
    remove_below({inode, name}, path / name);
  }
  note({.kind = Kind::Unlink,
        .inode = place.folder->number,
        .name = place.name,
        .text = fmt::format("remove {}", path.string())});
  place.folder->entries.erase(place.name);
}

void RecordingStorage::remove_tree(const Path& path) {
  const std::scoped_lock lock(mutex_);
  if (find(path)) remove_below(place_of(path, "removing"), path);
}

void RecordingStorage::remove_directory(const Path& path) {
  const std::scoped_lock lock(mutex_);
  const InodePtr inode = existing(path, "removing");
  if (!inode->is_folder) raise_errno("removing", path.string(), ENOTDIR);
  if (!inode->entries.empty()) raise_errno("removing", path.string(), ENOTEMPTY);
  remove_below(place_of(path, "removing"), path);
}

void RecordingStorage::remove_file(const Path& path) {
  const std::scoped_lock lock(mutex_);
  if (existing(path, "removing")->is_folder) raise_errno("removing", path.string(), EISDIR);
  remove_below(place_of(path, "removing"), path);
}

void RecordingStorage::sync_directory(const Path& path) {
  const std::scoped_lock lock(mutex_);
  note({.kind = Kind::SyncFolder,
        .inode = existing(path, "opening folder")->number,
        .text = fmt::format("sync folder {}", path.string())});
}

class RecordingStorage::Lock final : public NameLock {
 public:
  Lock(RecordingStorage& storage, Path path) : storage_(storage), path_(std::move(path)) {}
  ~Lock() override {
    if (storage_.kind(path_) != EntryKind::Missing) storage_.remove_file(path_);
    const std::scoped_lock lock(storage_.mutex_);
    storage_.locks_.erase(path_.string());
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  bool still_held() const override { return true; }

 private:
  RecordingStorage& storage_;
  const Path path_;
};

LockAttempt RecordingStorage::try_lock(const Path& path, const std::string& description) {
  {
    const std::scoped_lock lock(mutex_);
    const auto [holder, is_free] = locks_.try_emplace(path.string(), description);
    if (!is_free) return {nullptr, holder->second};
  }
  const auto file = kind(path) == EntryKind::Missing ? create(path) : open(path);
  file->resize(0);
  file->write_at(0, std::as_bytes(std::span(description)));
  return {std::make_unique<Lock>(*this, path), {}};
}

InodePtr copy_tree(const InodePtr& root) {
  std::map<std::uint64_t, InodePtr> copies;
  const std::function<InodePtr(const InodePtr&)> copy = [&](const InodePtr& inode) {
    InodePtr& made = copies[inode->number];
    if (made) return made;
    made = std::make_shared<Inode>(*inode);
    for (auto& [name, child] : made->entries) child = copy(child);
    return made;
  };
  return copy(root);
}

std::uint64_t digest_of(const Inode& inode) {
  if (!inode.is_folder) return inode.content->crc64();
  std::string text;
  for (const auto& [name, child] : inode.entries)
    text += fmt::format("{}{}{:x}\n", name, child->is_folder ? '/' : ' ', digest_of(*child));
  return crc64(text);
}

}  // namespace unishard::test
