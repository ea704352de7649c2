// The layout follows PKWARE's APPNOTE 6.3.9, sections 4.3 (records) and 4.5.3 (zip64), and what
// caffe2/serialize/inline_container.cc of PyTorch writes.
#include "containers/zip_reader.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/memory.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace unishard::converters::torch {
namespace {

constexpr std::uint64_t kDirectoryLimit = std::uint64_t{1} << 30;
constexpr std::uint64_t kTailBytes = 65536 + 22;  // longest comment and the end record
constexpr std::uint32_t kLocalHeader = 0x04034b50, kDirectoryEntry = 0x02014b50, kEnd = 0x06054b50,
                        kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr std::uint64_t kLocalHeaderBytes = 30, kDirectoryEntryBytes = 46, kEndBytes = 22,
                        kEnd64Bytes = 56, kLocatorBytes = 20;
constexpr std::uint16_t kStored = 0, kDeflate = 8;
constexpr std::uint32_t kFolderAttribute = 0x10;
/// Encrypted (in three ways), and compressed as a patch.
constexpr unsigned kUnreadFlags = 1u << 0 | 1u << 5 | 1u << 6 | 1u << 13;

template <class T>
T field(std::string_view record, std::size_t offset) {
  T value;
  std::memcpy(&value, record.data() + offset, sizeof(T));
  return value;
}

[[noreturn]] void damaged(const Window& window, std::uint64_t offset, std::string_view problem) {
  raise(ErrorCode::Corrupt, fmt::format("{}: zip archive damaged at byte {}: {}", window.name(),
                                        window.begin + offset, problem));
}

std::string read_string(const Window& window, std::uint64_t offset, std::uint64_t size) {
  std::string text(size, '\0');
  window.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

struct Directory {
  std::uint64_t offset = 0, size = 0, count = 0;
  bool is_split = false;  ///< among several disks
};

Directory parse_end64(const std::string& end) {
  const auto count = field<std::uint64_t>(end, 32);
  const bool is_split = field<std::uint32_t>(end, 16) != 0 || field<std::uint32_t>(end, 20) != 0 ||
                        field<std::uint64_t>(end, 24) != count;
  return {field<std::uint64_t>(end, 48), field<std::uint64_t>(end, 40), count, is_split};
}

Directory parse_end(const std::string& end) {
  const auto count = field<std::uint16_t>(end, 10);
  const bool is_split = field<std::uint16_t>(end, 4) != 0 || field<std::uint16_t>(end, 6) != 0 ||
                        field<std::uint16_t>(end, 8) != count;
  return {field<std::uint32_t>(end, 16), field<std::uint32_t>(end, 12), count, is_split};
}

[[noreturn]] void refuse_split(const Window& window) {
  raise(ErrorCode::Unsupported, fmt::format("{}: a zip archive of several disks", window.name()));
}

Directory read_end64(const Window& window, std::uint64_t locator_offset) {
  const std::string locator = read_string(window, locator_offset, kLocatorBytes);
  const auto offset = field<std::uint64_t>(locator, 8);
  if (field<std::uint32_t>(locator, 16) != 1) refuse_split(window);
  if (offset > window.size || window.size - offset < kEnd64Bytes) {
    damaged(window, locator_offset, "the zip64 end record lies outside the file");
  }
  const std::string end = read_string(window, offset, kEnd64Bytes);
  constexpr std::uint64_t kFrontBytes = 12;  // which its size does not count
  if (field<std::uint32_t>(end, 0) != kEnd64 ||
      field<std::uint64_t>(end, 4) < kEnd64Bytes - kFrontBytes)
    damaged(window, offset, "no zip64 end record");
  return parse_end64(end);
}

/// Searches the end record from the end of the file, as torch's reader does.
std::optional<std::uint64_t> find_end(const Window& window) {
  if (window.size < kEndBytes) return std::nullopt;
  const std::uint64_t tail_bytes = std::min(window.size, kTailBytes);
  const std::uint64_t tail_offset = window.size - tail_bytes;
  const std::string tail = read_string(window, tail_offset, tail_bytes);
  for (std::size_t at = tail.size() - kEndBytes + 1; at-- > 0;) {
    if (field<std::uint32_t>(tail, at) == kEnd &&
        field<std::uint16_t>(tail, at + 20) == tail.size() - at - kEndBytes)
      return tail_offset + at;
  }
  return std::nullopt;
}

/// Returns the offset of the zip64 locator before the end record.
std::optional<std::uint64_t> find_locator64(const Window& window, std::uint64_t end_offset) {
  if (end_offset < kLocatorBytes) return std::nullopt;
  const std::string locator = read_string(window, end_offset - kLocatorBytes, kLocatorBytes);
  if (field<std::uint32_t>(locator, 0) != kLocator64) return std::nullopt;
  return end_offset - kLocatorBytes;
}

Directory find_directory(const Window& window) {
  if (window.size < kEndBytes) damaged(window, 0, "too short for a zip archive");
  const auto offset = find_end(window);
  if (!offset) {
    raise(ErrorCode::Corrupt, fmt::format("{}: not a complete zip archive: its end record is "
                                          "missing (was the file cut short?)",
                                          window.name()));
  }
  const auto locator = find_locator64(window, *offset);
  const Directory directory =
      locator ? read_end64(window, *locator) : parse_end(read_string(window, *offset, kEndBytes));
  if (directory.is_split) refuse_split(window);
  return directory;
}

/// Replaces saturated fields by the 64-bit values of the zip64 extra field.
void apply_zip64(const Window& window, std::uint64_t offset, std::string_view extra,
                 ZipEntry& entry) {
  while (extra.size() >= 4) {
    const auto id = field<std::uint16_t>(extra, 0), size = field<std::uint16_t>(extra, 2);
    if (size > extra.size() - 4)
      damaged(window, offset, "an extra field that ends outside its record");
    std::string_view body = extra.substr(4, size);
    extra.remove_prefix(4u + size);
    if (id != 1) continue;
    for (std::uint64_t* value : {&entry.bytes, &entry.stored_bytes, &entry.header_offset}) {
      if (*value != 0xffffffffu) continue;
      if (body.size() < 8) damaged(window, offset, "a zip64 field that is too short");
      *value = field<std::uint64_t>(body, 0);
      body.remove_prefix(8);
    }
  }
}

std::string inflate_all(const Window& window, const ZipEntry& entry, const std::string& stored) {
  std::string out(entry.bytes, '\0');
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) raise(ErrorCode::Io, "zlib could not start");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(stored.data()));
  stream.avail_in = checked_cast<uInt>(stored.size(), "size of a deflated entry");
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = checked_cast<uInt>(out.size(), "size of a deflated entry");
  const int result = inflate(&stream, Z_FINISH);
  const bool complete = result == Z_STREAM_END && stream.avail_out == 0;
  inflateEnd(&stream);
  if (!complete)
    damaged(window, entry.header_offset,
            fmt::format("entry {} does not inflate to its size", unishard::quote(entry.name)));
  return out;
}

}  // namespace

void Window::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > size || out.size() > size - offset) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: truncated: bytes {} to {} are needed, {} are there", name(),
                      begin + offset, begin + offset + out.size(), begin + size));
  }
  file->read_at(begin + offset, out);
}

Window whole_file(Storage& storage, const Path& path) {
  std::shared_ptr<const File> file = storage.open(path);
  const std::uint64_t size = file->size();
  return {std::move(file), 0, size};
}

Window open_window(const std::shared_ptr<FilePool>& pool, const Path& path) {
  auto file = std::make_shared<const PooledFile>(pool, path);
  const std::uint64_t size = file->size();
  return {std::move(file), 0, size};
}

std::optional<std::uint64_t> find_archive(const Window& window) {
  // The directory ends where the end records begin. Their directory offset gives the archive's
  // begin.
  const auto end = find_end(window);
  if (!end) return std::nullopt;
  const auto locator = find_locator64(window, *end);
  if (locator && *locator < kEnd64Bytes) return std::nullopt;
  const std::uint64_t directory_end = locator ? *locator - kEnd64Bytes : *end;
  const Directory directory = locator ? parse_end64(read_string(window, directory_end, kEnd64Bytes))
                                      : parse_end(read_string(window, *end, kEndBytes));
  if (directory.size > directory_end || directory.offset > directory_end - directory.size)
    return std::nullopt;
  const std::uint64_t begin = directory_end - directory.size - directory.offset;
  const bool is_archive = directory.offset >= kLocalHeaderBytes &&
                          field<std::uint32_t>(read_string(window, begin, 4), 0) == kLocalHeader;
  return is_archive ? std::optional(begin) : std::nullopt;
}

ZipReader::ZipReader(Window window, Root root) : window_(std::move(window)), shape_(root) {
  const Directory directory = find_directory(window_);
  read_directory(directory.offset, directory.size, directory.count);
  check_disjoint();
  by_name_.reserve(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    has_checksums_ |= entries_[i].crc32 != 0;
    if (!by_name_.emplace(entries_[i].name, i).second) {
      damaged(window_, entries_[i].header_offset,
              fmt::format("two entries are named {}", unishard::quote(entries_[i].name)));
    }
  }
}

void ZipReader::read_directory(std::uint64_t offset, std::uint64_t size, std::uint64_t count) {
  if (offset > window_.size || size > window_.size - offset || size > kDirectoryLimit) {
    damaged(window_, window_.size, "its directory lies outside the file");
  }
  if (count > size / kDirectoryEntryBytes)
    damaged(window_, offset, "more entries than its directory has room for");
  // Memory: the directory and, for each entry, its row, its place in the index and its range
  // (check_disjoint).
  MemoryBudget(fmt::format("{}: zip directory", window_.name()))
      .charge(2 * size + count * (sizeof(ZipEntry) + 8 * sizeof(std::uint64_t)));
  const std::string directory = read_string(window_, offset, size);
  std::string_view rest = directory;
  entries_.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t at = offset + (directory.size() - rest.size());
    if (rest.size() < kDirectoryEntryBytes || field<std::uint32_t>(rest, 0) != kDirectoryEntry) {
      damaged(window_, at, "a directory entry is missing");
    }
    const std::uint64_t name_bytes = field<std::uint16_t>(rest, 28),
                        extra_bytes = field<std::uint16_t>(rest, 30),
                        comment_bytes = field<std::uint16_t>(rest, 32);
    const std::uint64_t total = kDirectoryEntryBytes + name_bytes + extra_bytes + comment_bytes;
    if (rest.size() < total) damaged(window_, at, "a directory entry ends outside the directory");
    const auto method = field<std::uint16_t>(rest, 10), flags = field<std::uint16_t>(rest, 8);
    ZipEntry entry{std::string(rest.substr(kDirectoryEntryBytes, name_bytes)),
                   field<std::uint32_t>(rest, 42),
                   field<std::uint32_t>(rest, 20),
                   field<std::uint32_t>(rest, 24),
                   field<std::uint32_t>(rest, 16),
                   method == kDeflate};
    if ((flags & kUnreadFlags) != 0 || (method != kStored && method != kDeflate)) {
      raise(ErrorCode::Unsupported,
            fmt::format("{}: entry {} is encrypted or compressed by method {}", window_.name(),
                        unishard::quote(entry.name), method));
    }
    if (field<std::uint16_t>(rest, 34) > 1) damaged(window_, at, "an entry on another disk");
    // torch takes such an entry for empty, and returns what is in memory.
    if ((field<std::uint32_t>(rest, 38) & kFolderAttribute) != 0 && !entry.name.ends_with('/'))
      damaged(window_, at, fmt::format("entry {} is a folder", unishard::quote(entry.name)));
    apply_zip64(window_, at, rest.substr(kDirectoryEntryBytes + name_bytes, extra_bytes), entry);
    if (!entry.deflated && entry.bytes != entry.stored_bytes)
      damaged(window_, at, "a stored entry with two sizes");
    rest.remove_prefix(total);
    if (shape_ == Root::Folder) take_off_root(entry.name, at);
    const bool is_folder = entry.name.empty() || (shape_ == Root::None && entry.name.back() == '/');
    if (!is_folder) entries_.push_back(std::move(entry));
  }
  if (!rest.empty()) damaged(window_, offset, "its directory has more entries than it counts");
}

void ZipReader::take_off_root(std::string& name, std::uint64_t at) {
  const std::size_t slash = name.find('/');
  if (slash == std::string::npos && entries_.empty() && root_.empty()) {
    raise(ErrorCode::Unsupported,
          fmt::format("{}: a zip archive of another program than torch.save: its first entry, {}, "
                      "is in no folder",
                      window_.name(), unishard::quote(name)),
          "take it apart (unzip), and name the file of a model in it");
  }
  if (slash == std::string::npos)
    damaged(window_, at, fmt::format("entry {} is in no folder", unishard::quote(name)));
  if (entries_.empty() && root_.empty()) root_ = name.substr(0, slash);
  if (name.compare(0, slash, root_) != 0) {
    damaged(window_, at,
            fmt::format("entry {} is not under {}", unishard::quote(name), unishard::quote(root_)));
  }
  name.erase(0, slash + 1);
}

std::string ZipReader::full_name(const ZipEntry& entry) const {
  return shape_ == Root::Folder ? fmt::format("{}/{}", root_, entry.name) : entry.name;
}

void ZipReader::check_disjoint() const {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  ranges.reserve(entries_.size());
  for (const ZipEntry& entry : entries_) {
    const std::uint64_t end =
        checked_add(checked_add(entry.header_offset, kLocalHeaderBytes, "zip entry"),
                    entry.stored_bytes, "zip entry");
    if (end > window_.size)
      damaged(window_, entry.header_offset,
              fmt::format("entry {} ends outside the file", unishard::quote(entry.name)));
    ranges.emplace_back(entry.header_offset, end);
  }
  std::ranges::sort(ranges);
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second)
      damaged(window_, ranges[i].first, "two entries lie over each other");
  }
}

const ZipEntry* ZipReader::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

std::uint64_t ZipReader::data_offset(const ZipEntry& entry) const {
  const std::string header = read_string(window_, entry.header_offset, kLocalHeaderBytes);
  if (field<std::uint32_t>(header, 0) != kLocalHeader)
    damaged(window_, entry.header_offset, "no local header");
  const std::uint64_t name_bytes = field<std::uint16_t>(header, 26),
                      extra_bytes = field<std::uint16_t>(header, 28);
  const std::uint64_t name_offset = entry.header_offset + kLocalHeaderBytes;
  const std::string name = read_string(window_, name_offset, name_bytes);
  if (name != full_name(entry)) {
    damaged(window_, entry.header_offset,
            fmt::format("the local header of {} names {}", unishard::quote(entry.name),
                        unishard::quote(name)));
  }
  const std::uint64_t offset = name_offset + name_bytes + extra_bytes;
  if (offset > window_.size || entry.stored_bytes > window_.size - offset) {
    damaged(window_, entry.header_offset,
            fmt::format("entry {} ends outside the file", unishard::quote(entry.name)));
  }
  return offset;
}

std::string ZipReader::unchecked(const ZipEntry& entry, std::uint64_t limit_bytes) const {
  if (entry.bytes > limit_bytes || entry.stored_bytes > limit_bytes) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: entry {} has {} bytes; at most {} are read", window_.name(),
                      unishard::quote(entry.name), entry.bytes, limit_bytes));
  }
  MemoryBudget(fmt::format("{}: entry {}", window_.name(), unishard::quote(entry.name)))
      .charge(entry.bytes + (entry.deflated ? entry.stored_bytes : 0));
  std::string bytes = read_string(window_, data_offset(entry), entry.stored_bytes);
  if (entry.deflated) bytes = inflate_all(window_, entry, bytes);
  return bytes;
}

std::string ZipReader::content(const ZipEntry& entry, std::uint64_t limit_bytes) const {
  std::string bytes = unchecked(entry, limit_bytes);
  const auto actual = static_cast<std::uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
  if (has_checksums_ && actual != entry.crc32) {
    damaged(window_, entry.header_offset,
            fmt::format("entry {} does not match its CRC-32", unishard::quote(entry.name)));
  }
  return bytes;
}

}  // namespace unishard::converters::torch
