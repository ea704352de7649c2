#include "containers/zip_writer.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>
#include <isa-l/crc.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>

namespace unishard::converters::torch {
namespace {

constexpr std::uint64_t kAlign = 64;
constexpr std::uint32_t kSaturated = 0xffffffff;
constexpr std::uint64_t kLocalBytes = 30;
constexpr std::uint64_t kZip64LocalBytes = 20;  // an extra field with both sizes
constexpr std::uint16_t kUtf8Name = 0x0800;
constexpr std::uint16_t kPaddingId = 0x4246;  // "FB", as torch names its padding

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

bool is_big(std::uint64_t value) { return value >= kSaturated; }
std::uint32_t saturate(std::uint64_t value) {
  return is_big(value) ? kSaturated : static_cast<std::uint32_t>(value);
}

/// Returns the bytes of the local header without the content of its padding field.
std::uint64_t header_bytes(std::uint64_t name_bytes, std::uint64_t data_bytes) {
  return kLocalBytes + name_bytes + (is_big(data_bytes) ? kZip64LocalBytes : 0) + 4;
}

}  // namespace

ZipWriter::ZipWriter(File& file, std::uint64_t begin, std::string root, std::vector<Item> items)
    : file_(file), begin_(begin) {
  std::uint64_t at = 0;
  std::uint64_t directory_bytes = 0;
  for (Item& item : items) {
    Entry entry;
    entry.name = root.empty() ? std::move(item.name) : fmt::format("{}/{}", root, item.name);
    if (entry.name.size() > 0xffff)
      raise(ErrorCode::Unsupported, "a zip entry's name is longer than 65535 bytes");
    entry.bytes = item.bytes;
    entry.header_offset = begin_ + at;
    at = round_up(at + header_bytes(entry.name.size(), entry.bytes), kAlign, "zip archive");
    entry.data_offset = begin_ + at;
    at = checked_add(at, entry.bytes, "zip archive");
    directory_bytes += directory_entry(entry, 0).size();
    entries_.push_back(std::move(entry));
  }
  directory_ = begin_ + at;
  end_ = directory_ + directory_bytes + end_records(0, 0).size();
}

void ZipWriter::write(std::size_t item, std::uint64_t offset, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  Entry& entry = entries_.at(item);
  if (offset > entry.bytes || bytes.size() > entry.bytes - offset) {
    raise(ErrorCode::Internal,
          fmt::format("{}: written outside of {}", file_.path().string(), entry.name));
  }
  file_.write_at(entry.data_offset + offset, bytes);
  const std::uint32_t crc =
      crc32_gzip_refl(0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  const std::scoped_lock lock(mutex_);
  entry.pieces.push_back({offset, bytes.size(), crc});
}

void ZipWriter::write(std::size_t item, std::string_view whole) {
  write(item, 0, std::as_bytes(std::span(whole)));
}

std::uint32_t ZipWriter::checksum(Entry& entry) const {
  std::ranges::sort(entry.pieces, {}, &Piece::offset);
  std::uint64_t at = 0;
  std::uint32_t crc = 0;
  for (const Piece& piece : entry.pieces) {
    if (piece.offset != at) break;
    crc = static_cast<std::uint32_t>(
        crc32_combine(crc, piece.crc32, static_cast<z_off_t>(piece.bytes)));
    at += piece.bytes;
  }
  if (at != entry.bytes) {
    raise(ErrorCode::Internal, fmt::format("{}: {} has {} of {} bytes", file_.path().string(),
                                           entry.name, at, entry.bytes));
  }
  return crc;
}

std::string ZipWriter::local_header(const Entry& entry, std::uint32_t crc32) const {
  const std::uint64_t padding =
      entry.data_offset - entry.header_offset - header_bytes(entry.name.size(), entry.bytes);
  std::string out;
  put<std::uint32_t>(out, 0x04034b50);
  put<std::uint16_t>(out, 0);  // version needed, as torch writes it
  put<std::uint16_t>(out, kUtf8Name);
  put<std::uint16_t>(out, 0);  // stored
  put<std::uint32_t>(out, 0);  // time and date
  put<std::uint32_t>(out, crc32);
  put<std::uint32_t>(out, saturate(entry.bytes));
  put<std::uint32_t>(out, saturate(entry.bytes));
  put<std::uint16_t>(out, static_cast<std::uint16_t>(entry.name.size()));
  put<std::uint16_t>(
      out, static_cast<std::uint16_t>((is_big(entry.bytes) ? kZip64LocalBytes : 0) + 4 + padding));
  out += entry.name;
  if (is_big(entry.bytes)) {
    put<std::uint16_t>(out, 1);
    put<std::uint16_t>(out, 16);
    put<std::uint64_t>(out, entry.bytes);
    put<std::uint64_t>(out, entry.bytes);
  }
  put<std::uint16_t>(out, kPaddingId);
  put<std::uint16_t>(out, static_cast<std::uint16_t>(padding));
  out.append(padding, 'Z');
  return out;
}

std::string ZipWriter::directory_entry(const Entry& entry, std::uint32_t crc32) const {
  const std::uint64_t offset = entry.header_offset - begin_;
  std::string extra;
  if (is_big(entry.bytes)) {
    put<std::uint64_t>(extra, entry.bytes);
    put<std::uint64_t>(extra, entry.bytes);
  }
  if (is_big(offset)) put<std::uint64_t>(extra, offset);
  std::string out;
  put<std::uint32_t>(out, 0x02014b50);
  put<std::uint16_t>(out, 0);
  put<std::uint16_t>(out, 0);
  put<std::uint16_t>(out, kUtf8Name);
  put<std::uint16_t>(out, 0);
  put<std::uint32_t>(out, 0);
  put<std::uint32_t>(out, crc32);
  put<std::uint32_t>(out, saturate(entry.bytes));
  put<std::uint32_t>(out, saturate(entry.bytes));
  put<std::uint16_t>(out, static_cast<std::uint16_t>(entry.name.size()));
  put<std::uint16_t>(out, static_cast<std::uint16_t>(extra.empty() ? 0 : extra.size() + 4));
  put<std::uint16_t>(out, 0);  // comment
  put<std::uint16_t>(out, 0);  // disk
  put<std::uint16_t>(out, 0);  // attributes
  put<std::uint32_t>(out, 0);
  put<std::uint32_t>(out, saturate(offset));
  out += entry.name;
  if (!extra.empty()) {
    put<std::uint16_t>(out, 1);
    put<std::uint16_t>(out, static_cast<std::uint16_t>(extra.size()));
    out += extra;
  }
  return out;
}

std::string ZipWriter::end_records(std::uint64_t directory_offset,
                                   std::uint64_t directory_bytes) const {
  const std::uint64_t count = entries_.size();
  const auto short_count = static_cast<std::uint16_t>(std::min<std::uint64_t>(count, 0xffff));
  std::string out;
  put<std::uint32_t>(out, 0x06064b50);
  put<std::uint64_t>(out, 44);
  put<std::uint16_t>(out, 0x031e);
  put<std::uint16_t>(out, 45);
  put<std::uint64_t>(out, 0);  // disks
  put<std::uint64_t>(out, count);
  put<std::uint64_t>(out, count);
  put<std::uint64_t>(out, directory_bytes);
  put<std::uint64_t>(out, directory_offset);
  put<std::uint32_t>(out, 0x07064b50);
  put<std::uint32_t>(out, 0);
  put<std::uint64_t>(out, directory_offset + directory_bytes);
  put<std::uint32_t>(out, 1);
  put<std::uint32_t>(out, 0x06054b50);
  put<std::uint32_t>(out, 0);  // disks
  put<std::uint16_t>(out, short_count);
  put<std::uint16_t>(out, short_count);
  put<std::uint32_t>(out, saturate(directory_bytes));
  put<std::uint32_t>(out, saturate(directory_offset));
  put<std::uint16_t>(out, 0);  // comment
  return out;
}

void ZipWriter::finish() {
  std::string directory;
  for (Entry& entry : entries_) {
    const std::uint32_t crc = checksum(entry);
    const std::string header = local_header(entry, crc);
    file_.write_at(entry.header_offset, std::as_bytes(std::span(header)));
    directory += directory_entry(entry, crc);
  }
  directory += end_records(directory_ - begin_, directory.size());
  file_.write_at(directory_, std::as_bytes(std::span(directory)));
}

}  // namespace unishard::converters::torch
