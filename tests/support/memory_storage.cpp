#include "memory_storage.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <set>
#include <span>

namespace unishard::test {
namespace {

class MemoryFile final : public File {
 public:
  MemoryFile(Path path, std::shared_ptr<std::string> bytes)
      : path_(std::move(path)), bytes_(std::move(bytes)) {}

  std::uint64_t size() const override { return bytes_->size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset > bytes_->size() || out.size() > bytes_->size() - offset) {
      raise(ErrorCode::Corrupt, fmt::format("{}: truncated", path_.string()));
    }
    std::ranges::copy(std::as_bytes(std::span(*bytes_)).subspan(offset, out.size()), out.begin());
  }
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
    bytes_->resize(std::max<std::size_t>(bytes_->size(), offset + bytes.size()));
    std::ranges::copy(bytes, std::as_writable_bytes(std::span(*bytes_)).begin() +
                                 static_cast<std::ptrdiff_t>(offset));
  }
  void reserve(std::uint64_t bytes) override {
    bytes_->resize(std::max<std::size_t>(bytes_->size(), bytes));
  }
  void resize(std::uint64_t bytes) override { bytes_->resize(bytes); }
  void sync() override {}
  void close() override {}
  const Path& path() const override { return path_; }

 private:
  const Path path_;
  const std::shared_ptr<std::string> bytes_;
};

}  // namespace

void MemoryStorage::put(const Path& path, std::string bytes) {
  files[path.string()] = std::make_shared<std::string>(std::move(bytes));
}

void MemoryStorage::copy_from_disk(const Path& folder) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    put(entry.path(), {std::istreambuf_iterator<char>(file), {}});
  }
}

std::unique_ptr<File> MemoryStorage::open(const Path& path) {
  const auto found = files.find(path.string());
  if (found == files.end()) raise(ErrorCode::NotFound, fmt::format("open {}", path.string()));
  return std::make_unique<MemoryFile>(path, found->second);
}

std::unique_ptr<File> MemoryStorage::create(const Path& path) {
  put(path, {});
  return open(path);
}

EntryKind MemoryStorage::kind(const Path& path) {
  if (files.contains(path.string())) return EntryKind::File;
  const std::string prefix = path.string() + "/";
  const auto next = files.lower_bound(prefix);
  const bool is_folder = next != files.end() && next->first.starts_with(prefix);
  return is_folder ? EntryKind::Directory : EntryKind::Missing;
}

std::vector<Entry> MemoryStorage::list(const Path& directory) {
  std::map<std::string, EntryKind> entries;
  const std::string prefix = directory.string() + "/";
  for (auto file = files.lower_bound(prefix);
       file != files.end() && file->first.starts_with(prefix); ++file) {
    const std::string rest = file->first.substr(prefix.size());
    const std::size_t slash = rest.find('/');
    entries[rest.substr(0, slash)] =
        slash == std::string::npos ? EntryKind::File : EntryKind::Directory;
  }
  std::vector<Entry> out;
  for (const auto& [name, kind] : entries) out.push_back({name, kind, 0});
  return out;
}

void MemoryStorage::rename(const Path& from, const Path& to) {
  std::map<std::string, std::shared_ptr<std::string>> moved;
  for (auto file = files.begin(); file != files.end();) {
    const bool inside =
        file->first == from.string() || file->first.starts_with(from.string() + "/");
    if (inside) moved[to.string() + file->first.substr(from.string().size())] = file->second;
    file = inside ? files.erase(file) : std::next(file);
  }
  files.merge(moved);
}

void MemoryStorage::rename_new(const Path& from, const Path& to) {
  if (kind(to) != EntryKind::Missing)
    raise(ErrorCode::AlreadyExists, fmt::format("renaming to {}", to.string()));
  rename(from, to);
}

void MemoryStorage::exchange(const Path&, const Path&) {
  raise(ErrorCode::Unsupported, "exchange in memory");
}

void MemoryStorage::hard_link(const Path& from, const Path& to) {
  files[to.string()] = files.at(from.string());
}

LockAttempt MemoryStorage::try_lock(const Path&, const std::string&) {
  struct Lock final : NameLock {
    bool still_held() const override { return true; }
  };
  return {std::make_unique<Lock>(), {}};  // nobody else sees this memory
}

void MemoryStorage::remove_tree(const Path& path) {
  std::erase_if(files, [&](const auto& file) {
    return file.first == path.string() || file.first.starts_with(path.string() + "/");
  });
}

}  // namespace unishard::test
