#pragma once
// Dicts whose keys are not all texts are lists of pairs in JSON (containers/object_tree.hpp).
// Thread safety: a pure function.
#include "unishard/format/json.hpp"

#include <string>

namespace unishard::converters {

/// Returns a key as a part of a name: a text as it is, and any other key as JSON.
inline std::string key_text(const Json& key) {
  return key.is_string() ? key.get<std::string>() : key.dump();
}

}  // namespace unishard::converters
