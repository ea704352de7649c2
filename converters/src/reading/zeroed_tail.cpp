#include "reading/zeroed_tail.hpp"

#include "unishard/format/error.hpp"

#include "containers/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>

namespace unishard::converters {
namespace {

constexpr std::string_view kSuffix = ".safetensors";

bool ends_with_zero(const File& file) {
  std::byte last{};
  if (file.size() > 0) file.read_at(file.size() - 1, std::span(&last, 1));
  return last == std::byte{0};
}

/// Returns where the zeros at the end of the file begin; not before `first`.
std::uint64_t begin_of_zeros(const File& file, std::uint64_t first) {
  constexpr std::uint64_t kStep = std::uint64_t{1} << 16;
  std::vector<std::byte> bytes(kStep);
  std::uint64_t end = file.size();
  while (end > first) {
    const std::uint64_t count = std::min(kStep, end - first);
    const std::span part(bytes.data(), count);
    file.read_at(end - count, part);
    const auto last = std::find_if(part.rbegin(), part.rend(),
                                   [](std::byte each) { return each != std::byte{0}; });
    const auto zeros = static_cast<std::uint64_t>(last - part.rbegin());
    end -= zeros;
    if (zeros < count) break;
  }
  return end;
}

}  // namespace

std::optional<std::string> doubt_about_tail(const File& file) {
  constexpr std::uint64_t kPage = 4096, kElement = 8;
  try {
    if (!ends_with_zero(file)) return std::nullopt;  // the usual case, without a second header
    const safetensors::Header header = safetensors::read_header(file);
    const std::uint64_t zeros = begin_of_zeros(file, header.data_offset);
    const std::uint64_t at = zeros - header.data_offset;
    const auto cut = std::ranges::find_if(header.entries, [&](const auto& entry) {
      return entry.begin < at && at < entry.end;  // a number may end with zeros
    });
    if (cut == header.entries.end()) return std::nullopt;
    const bool is_page = zeros % kPage == 0;
    const bool goes_on = cut->end - at > kElement && header.data_offset + cut->end < file.size();
    if (!is_page && !goes_on) return std::nullopt;
    return fmt::format(
        "{} ends with {} bytes of zeros, which begin inside of {}: so does a copy "
        "that was cut and kept its size",
        file.path().string(), file.size() - zeros, quote(cut->name));
  } catch (const Error&) {
    return std::nullopt;  // its reader says what is wrong
  }
}

std::vector<std::string> doubts_about_tails(Storage& storage, const Path& path) {
  std::vector<Path> files;
  if (storage.kind(path) == EntryKind::Directory) {
    for (const Entry& entry : storage.list(path)) files.push_back(path / entry.name);
  } else {
    files.push_back(path);
  }
  std::vector<std::string> doubts;
  for (const Path& file : files) {
    if (!file.native().ends_with(kSuffix) || storage.kind(file) != EntryKind::File) continue;
    try {
      if (auto doubt = doubt_about_tail(*storage.open(file))) doubts.push_back(std::move(*doubt));
    } catch (const Error&) {
      continue;  // its reader says what is wrong
    }
  }
  return doubts;
}

}  // namespace unishard::converters
