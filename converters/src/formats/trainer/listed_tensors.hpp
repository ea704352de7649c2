#pragma once
// The index of a sharded model, compared with what the shards hold.
#include "unishard/converters/loss.hpp"
#include "unishard/format/storage.hpp"

#include <map>
#include <set>
#include <string>
#include <vector>

namespace unishard::converters::trainer {

/// Compares the names that an index gives each file with those in the files. Not thread-safe.
class ListedTensors {
 public:
  using WeightMap = std::map<std::string, std::string>;  ///< the file of each tensor

  /// `listed` is empty where there is no index.
  ListedTensors(Path index, WeightMap listed);

  /// Returns whether there is no index.
  bool empty() const { return listed_.empty(); }
  void add_tensor(const std::string& name, const std::string& file) { held_[name].insert(file); }
  /// Adds a name whose value is no tensor.
  void add_other(const std::string& name) { others_.insert(name); }

  /// Returns the listed names whose values are no tensors.
  /// Throws: Corrupt, naming the index and a tensor that it lists and no file has.
  Losses missing() const;
  /// Returns remarks on tensors that are in another file than the index says, and on those that it
  /// does not list.
  std::vector<std::string> doubts() const;

 private:
  std::vector<std::string> misplaced() const;
  std::vector<std::string> unlisted() const;

  Path index_;
  WeightMap listed_;
  std::map<std::string, std::set<std::string>> held_;  ///< the files that have each tensor
  std::set<std::string> others_;
};

}  // namespace unishard::converters::trainer
