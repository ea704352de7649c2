#include "team/shared_digests.hpp"

#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"

#include "team/read_blocks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace unishard::tools {
namespace {

/// The tensors are treated as one sequence of bytes, of which each process has a range.
std::vector<Fragment> fragments_of(const DigestJob& job, const converters::WorkSplit& share) {
  std::uint64_t total = 0;
  for (const std::size_t tensor : job.tensors) total += job.catalog->tensors[tensor].bytes();
  const converters::ByteRun run = owned_run(total, 1, share);
  std::vector<Fragment> fragments;
  std::uint64_t begin = 0;
  for (const std::size_t tensor : job.tensors) {
    const TensorInfo& info = job.catalog->tensors[tensor];
    const auto [first, last] = run.elements_in(begin, size_of(info.dtype), info.elements());
    begin += info.bytes();
    const ElementRange range{job.boundary(tensor, first), job.boundary(tensor, last)};
    if (!range.empty()) fragments.push_back({static_cast<std::uint32_t>(tensor), range});
  }
  return fragments;
}

/// One line per part: tensor, first and end element, digest.
std::string encode(const std::vector<converters::PartDigest>& parts) {
  std::string text;
  for (const auto& [part, crc] : parts) {
    if (part.range.empty()) continue;
    text += fmt::format("{} {} {} {}\n", part.tensor, part.range.begin, part.range.end, crc);
  }
  return text;
}

void decode(const std::string& text, const Catalog& catalog,
            std::vector<converters::PartDigest>& parts) {
  std::istringstream lines(text);
  converters::PartDigest digest;
  Fragment& part = digest.part;
  while (lines >> part.tensor >> part.range.begin >> part.range.end >> digest.crc64) {
    if (part.tensor >= catalog.tensors.size() || part.range.empty() ||
        part.range.end > catalog.tensors[part.tensor].elements())
      raise(ErrorCode::Corrupt, "the digests of another process are of other tensors");
    parts.push_back(digest);
  }
  if (!lines.eof()) raise(ErrorCode::Corrupt, "the digests of another process cannot be read");
}

}  // namespace

std::vector<converters::PartDigest> digest_share(const DigestJob& job, const Team& team,
                                                 const TransferOptions& options) {
  std::vector<converters::PartDigest> parts;
  for (const Fragment& fragment : fragments_of(job, {.rank = team.rank(), .size = team.size()}))
    parts.push_back({fragment, 0});
  run_bounded(parts.size(), options, [&](std::size_t index, std::span<std::byte> buffer) {
    auto& [part, digest] = parts[index];
    read_blocks(
        part.range, size_of(job.catalog->tensors[part.tensor].dtype), buffer, options,
        [&](ElementRange range, std::span<std::byte> out) { job.read(part.tensor, range, out); },
        [&](std::span<const std::byte> block) { digest = crc64(block, digest); });
    return std::uint64_t{0};
  });
  return parts;
}

converters::Digests gather_digests(Team& team, const Catalog& catalog,
                                   const std::vector<converters::PartDigest>& parts) {
  std::vector<converters::PartDigest> all;
  if (team.size() == 1) return whole_digests(catalog, parts);
  for (const std::string& text : team.gather(encode(parts))) decode(text, catalog, all);
  return whole_digests(catalog, std::move(all));
}

}  // namespace unishard::tools
