#pragma once
// JSON as UniShard reads and writes it: objects keep their order, and reading is strict: no
// duplicate keys, no NaN or Infinity, limited depth and size, valid UTF-8.
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace unishard {

using Json = nlohmann::ordered_json;

struct JsonLimits {
  std::uint64_t bytes = std::uint64_t{256} << 20;
  unsigned depth = 64;
};

/// Throws Corrupt naming `what` (a file or field) and the byte where reading stopped.
Json parse_json(std::string_view text, std::string_view what, JsonLimits limits = {});

}  // namespace unishard
