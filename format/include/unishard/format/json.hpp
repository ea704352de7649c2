#pragma once
// Strict reading of JSON: no duplicate keys, no NaN or Infinity, no NUL, valid UTF-8, and limits on
// size, depth and keys.
// Thread safety: pure functions.
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace unishard {

/// JSON whose objects keep the order of their keys. A look-up searches linearly.
using Json = nlohmann::ordered_json;
/// JSON whose objects are sorted by key, for tables with one key per tensor.
using SortedJson = nlohmann::json;

struct JsonLimits {
  std::uint64_t bytes = std::uint64_t{256} << 20;
  unsigned depth = 64;
  std::uint64_t keys_per_object = 16384;
};

/// Parses `text`. `what` is the file or field that messages name.
/// Throws: Corrupt, naming `what` and the byte where reading stopped; MemoryLimit when the tree
/// would exceed description_limit().
/// Complexity: linear in the text.
Json parse_json(std::string_view text, std::string_view what, JsonLimits limits = {});
/// Returns why parse_json() would refuse `value` once it is written, for example "it is nested 80
/// levels deep; up to 64 are read"; empty when it would not.
std::string unreadable_reason(const Json& value, JsonLimits limits = {});
/// Does the same as parse_json(), with sorted objects and no limit on the keys per object.
SortedJson parse_sorted_json(std::string_view text, std::string_view what,
                             JsonLimits limits = {.keys_per_object = ~std::uint64_t{0}});

}  // namespace unishard
