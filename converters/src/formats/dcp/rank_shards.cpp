#include "formats/dcp/rank_shards.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include "reading/completeness.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace unishard::converters::dcp {

namespace {

/// More files of one model are no model's.
constexpr std::uint64_t kMostNumbers = 1 << 16;

}  // namespace

std::optional<ShardName> parse_shard_name(std::string_view name) {
  constexpr std::string_view kStart = "shard-", kEnd = ".safetensors";
  if (!name.starts_with(kStart) || !name.ends_with(kEnd)) return std::nullopt;
  name.remove_prefix(kStart.size());
  ShardName shard;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), shard.rank);
  name.remove_prefix(static_cast<std::size_t>(end - name.data()));
  if (error != std::errc() || shard.rank == 0 || shard.rank > limits::kWorldSize ||
      !name.starts_with('-'))
    return std::nullopt;
  shard.rest = name.substr(1);
  return shard;
}

void RankShards::add(const ShardName& name, const std::vector<std::string>& keys) {
  ranks_ = std::max(ranks_, name.rank);
  Number& number = numbers_[name.rest];
  number.ranks.insert(name.rank);
  for (const std::string& key : keys) ++number.parts[key];
}

void RankShards::require_numbers(const Path& folder) const {
  std::map<std::uint64_t, std::string_view> counts;  // and the name of a file that tells it
  for (const auto& [rest, ignored] : numbers_) {
    const auto part = rest.starts_with("model-") ? parse_part_name(rest) : std::nullopt;
    if (part && part->count) counts.try_emplace(*part->count, rest);
  }
  for (const auto& [count, rest] : counts) {
    for (std::uint64_t number = 1; number <= std::min(count, kMostNumbers); ++number) {
      const std::string wanted = fmt::format("model-{:05}-of-{:05}.safetensors", number, count);
      if (numbers_.contains(wanted)) continue;
      raise(ErrorCode::Corrupt,
            fmt::format("{}: no rank has a file {}, and there is {}", folder.string(),
                        unishard::quote("shard-*-" + wanted), unishard::quote(rest)),
            "bring the files back, or use another checkpoint");
    }
  }
}

std::vector<std::string> RankShards::require_whole(const Path& folder) const {
  require_numbers(folder);
  std::vector<std::string> notes;
  for (const auto& [rest, number] : numbers_) {
    if (number.ranks.size() == ranks_) continue;
    std::uint32_t rank = 1;
    while (number.ranks.contains(rank)) ++rank;
    const std::string file = fmt::format("shard-{:05}-{}", rank, rest);
    const auto cut = std::ranges::find_if(number.parts, [&](const auto& part) {
      return number.ranks.size() > 1 && part.second >= number.ranks.size();
    });
    if (cut != number.parts.end()) {
      raise(ErrorCode::Corrupt,
            fmt::format("{} is missing: all other ranks hold a part of {} in such a file",
                        (folder / file).string(), unishard::quote(cut->first)),
            "bring the file back, or use another checkpoint; the tensor would be too small");
    }
    notes.push_back(fmt::format(
        "{} is not there: if rank {} has saved one, the tensors of these files lack its part", file,
        rank - 1));
  }
  return notes;
}

}  // namespace unishard::converters::dcp
