#include "unishard/format/file_excerpt.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

namespace unishard {
namespace {

/// A file that can only be read.
class ReadOnlyFile : public File {
 public:
  void write_at(std::uint64_t, std::span<const std::byte>) override { refuse(); }
  void reserve(std::uint64_t) override { refuse(); }
  void resize(std::uint64_t) override { refuse(); }
  void sync() override {}
  void close() override {}

 private:
  [[noreturn]] void refuse() const {
    raise(ErrorCode::Internal, fmt::format("{}: opened for reading", path().native()));
  }
};

class ExcerptFile final : public ReadOnlyFile {
 public:
  ExcerptFile(std::shared_ptr<const FileExcerpt> excerpt, Path path)
      : excerpt_(std::move(excerpt)), path_(std::move(path)) {}

  std::uint64_t size() const override { return excerpt_->bytes; }
  const Path& path() const override { return path_; }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    while (!out.empty()) {
      const std::size_t copied = copy_from(offset, out);
      offset += copied;
      out = out.subspan(copied);
    }
  }

 private:
  /// Copies the first bytes of `out` that one part holds, and returns their number.
  std::size_t copy_from(std::uint64_t offset, std::span<std::byte> out) const {
    for (const auto& [begin, bytes] : excerpt_->parts) {
      if (offset < begin || offset - begin >= bytes.size()) continue;
      const auto first = static_cast<std::size_t>(offset - begin);
      const std::size_t count = std::min(out.size(), bytes.size() - first);
      std::memcpy(out.data(), bytes.data() + first, count);
      return count;
    }
    raise(ErrorCode::Io, fmt::format("{}: the file is on another node, and byte {} was not sent",
                                     path_.native(), offset));
  }

  const std::shared_ptr<const FileExcerpt> excerpt_;
  const Path path_;
};

/// Notes in an excerpt what is read.
class NotedFile final : public ReadOnlyFile {
 public:
  NotedFile(std::unique_ptr<File> file, FileExcerpt& excerpt)
      : file_(std::move(file)), excerpt_(excerpt) {
    excerpt_.bytes = file_->size();
  }
  std::uint64_t size() const override { return file_->size(); }
  FileStamp stamp() const override { return file_->stamp(); }
  const Path& path() const override { return file_->path(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    file_->read_at(offset, out);
    std::vector<std::uint8_t> bytes(out.size());
    if (!out.empty()) std::memcpy(bytes.data(), out.data(), out.size());
    excerpt_.parts.emplace_back(offset, std::move(bytes));
  }

 private:
  const std::unique_ptr<File> file_;
  FileExcerpt& excerpt_;
};

}  // namespace

std::vector<FileExcerpt> excerpts_of(Storage& storage, const Path& folder,
                                     const std::function<void(Storage&)>& read) {
  std::map<std::string, FileExcerpt> excerpts;
  OverlaidStorage noting(storage);
  for (const Entry& entry : storage.list(folder)) {
    if (entry.kind != EntryKind::File) continue;
    noting.add(folder / entry.name, [&storage, &excerpts, path = folder / entry.name] {
      FileExcerpt& excerpt = excerpts[path.filename().string()];
      excerpt.name = path.filename().string();
      return std::make_unique<NotedFile>(storage.open(path), excerpt);
    });
  }
  read(noting);
  std::vector<FileExcerpt> found;
  for (auto& [name, excerpt] : excerpts) found.push_back(std::move(excerpt));
  return found;
}

std::string encode_excerpts(const std::vector<FileExcerpt>& excerpts) {
  Json all = Json::array();
  for (const FileExcerpt& excerpt : excerpts) {
    Json parts = Json::array();
    for (const auto& [offset, bytes] : excerpt.parts)
      parts.push_back({offset, Json::binary(bytes)});
    all.push_back({excerpt.name, excerpt.bytes, std::move(parts)});
  }
  std::string text;
  Json::to_cbor(all, text);
  return text;
}

std::vector<FileExcerpt> decode_excerpts(std::string_view text) {
  try {
    std::vector<FileExcerpt> excerpts;
    for (const Json& each : Json::from_cbor(text)) {
      FileExcerpt excerpt{each.at(0).get<std::string>(), each.at(1).get<std::uint64_t>(), {}};
      for (const Json& part : each.at(2))
        excerpt.parts.emplace_back(part.at(0).get<std::uint64_t>(), part.at(1).get_binary());
      excerpts.push_back(std::move(excerpt));
    }
    return excerpts;
  } catch (const Json::exception& error) {
    raise(ErrorCode::Corrupt, fmt::format("an excerpt of a file: {}", error.what()));
  }
}

void add_excerpt(OverlaidStorage& storage, const Path& folder, FileExcerpt excerpt) {
  const Path path = folder / excerpt.name;
  const auto kept = std::make_shared<const FileExcerpt>(std::move(excerpt));
  storage.add(path, [kept, path] { return std::make_unique<ExcerptFile>(kept, path); });
}

}  // namespace unishard
