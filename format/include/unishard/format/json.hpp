#pragma once
// JSON as UniShard reads and writes it. Reading is strict: no duplicate keys, no NaN or Infinity,
// no NUL, limited depth, size and keys, valid UTF-8. Linear in the text.
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace unishard {

/// Objects keep their order and are searched linearly: for what people read.
using Json = nlohmann::ordered_json;
/// Objects are sorted by key: for tables with a key per tensor.
using SortedJson = nlohmann::json;

struct JsonLimits {
  std::uint64_t bytes = std::uint64_t{256} << 20;
  unsigned depth = 64;
  std::uint64_t keys_per_object = 16384;
};

/// Throws Corrupt naming `what` (a file or field) and the byte where reading stopped.
Json parse_json(std::string_view text, std::string_view what, JsonLimits limits = {});
/// Why parse_json() would refuse `value` once it is written ("nested 80 levels deep; 64 are read");
/// empty when it would not.
std::string unreadable_reason(const Json& value, JsonLimits limits = {});
SortedJson parse_sorted_json(std::string_view text, std::string_view what,
                             JsonLimits limits = {.keys_per_object = ~std::uint64_t{0}});

}  // namespace unishard
