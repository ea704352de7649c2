#pragma once
// Values with paths put together into one JSON value, as the state dict had them before it was
// flattened.
#include "unishard/format/json.hpp"

#include "formats/dcp/metadata.hpp"

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace unishard::converters::dcp {

class ClientTree {
 public:
  /// False when the place is taken already.
  bool insert(const KeyPath& path, Json value);
  bool empty() const { return children_.empty(); }
  /// Positions 0, 1, 2, ... become an array, everything else an object.
  Json json() const;

 private:
  std::optional<Json> value_;
  std::vector<std::pair<PathPart, std::unique_ptr<ClientTree>>> children_;
  std::unordered_map<std::string, std::size_t> by_text_;
};

}  // namespace unishard::converters::dcp
