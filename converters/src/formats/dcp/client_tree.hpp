#pragma once
// Restores one JSON value from values with paths, as the state dict had it before it was flattened.
#include "unishard/format/json.hpp"

#include "formats/dcp/metadata.hpp"

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace unishard::converters::dcp {

/// Not thread-safe.
class ClientTree {
 public:
  /// Returns false when the place is already taken.
  bool insert(const KeyPath& path, Json value);
  bool empty() const { return children_.empty(); }
  /// Returns the value. Children at positions 0, 1, 2, ... become an array, all others an object.
  Json json() const;

 private:
  std::optional<Json> value_;
  std::vector<std::pair<PathPart, std::unique_ptr<ClientTree>>> children_;
  std::unordered_map<std::string, std::size_t> by_text_;
};

}  // namespace unishard::converters::dcp
