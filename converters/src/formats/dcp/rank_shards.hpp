#pragma once
// The files of DCP's HuggingFaceStorageWriter, such as
// shard-00001-model-00001-of-00002.safetensors of rank 0. Nothing lists them: a file that is
// missing shows only in what the others hold.
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::dcp {

struct ShardName {
  std::uint32_t rank = 0;  ///< from 1 on
  std::string rest;        ///< "model-00001-of-00002.safetensors", equal on all ranks
};
/// Returns nullopt for another name.
std::optional<ShardName> parse_shard_name(std::string_view name);

/// Finds ranks that have no file of a number that others have.
class RankShards {
 public:
  /// Pre: `keys` are the tensors of which the file holds parts.
  void add(const ShardName& name, const std::vector<std::string>& keys);

  std::uint32_t ranks() const { return ranks_; }
  /// Returns a line for each file that may be missing: a rank has none where it holds nothing.
  /// Throws: Corrupt, naming the file in `folder`, when all other ranks hold parts of one tensor
  /// there.
  std::vector<std::string> require_whole(const Path& folder) const;

 private:
  /// Throws: Corrupt when no rank has a file of a number that the names count.
  void require_numbers(const Path& folder) const;

  struct Number {
    std::set<std::uint32_t> ranks;
    std::map<std::string, std::size_t> parts;  ///< of each tensor
  };
  std::map<std::string, Number> numbers_;  ///< by ShardName::rest
  std::uint32_t ranks_ = 1;
};

}  // namespace unishard::converters::dcp
