#pragma once
// Names of one tensor in the files of ranks: each rank's file says on its own which of its tensors
// share their elements. Two names are of one tensor where they do in every file.
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace unishard::converters::dcp {

struct StateDict;

/// Not thread-safe.
class RankTies {
 public:
  /// Notes that in the file of `rank` the elements of `key` are those of `first`, which is the
  /// first key there that has them, or `key` itself.
  void add(const std::string& key, std::uint64_t rank, const std::string& first);

  /// Takes the tensors that are another one in all files out of the state dict, and makes second
  /// keys of them. A tensor that is another's in some of the files only stays one of its own.
  /// Forgets what was noted.
  void settle(StateDict& state);

 private:
  using Number = std::uint32_t;  // of a key
  using Firsts = std::vector<std::pair<std::uint64_t, Number>>;

  Number number_of(const std::string& key);

  std::unordered_map<std::string, Number> numbers_;
  std::unordered_map<std::string, Firsts> firsts_;  // by key: on each rank, the first key
};

}  // namespace unishard::converters::dcp
