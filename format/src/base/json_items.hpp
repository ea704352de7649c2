#pragma once
// Reads JSON that consists mostly of one large array, item by item: a parsed tree takes about ten
// times the memory of its text. Private to format.
#include "unishard/format/json.hpp"

#include <string_view>
#include <vector>

namespace unishard::detail {

/// Parses `text` like parse_json(), except for the items of the array `key` of the outermost
/// object. Each item's text is appended to `items`, and the array in the result is empty.
/// Lifetime: `items` points into `text`.
/// Throws: what parse_json() throws.
Json parse_json_but_items(std::string_view text, std::string_view key,
                          std::vector<std::string_view>& items, std::string_view what,
                          JsonLimits limits = {});

}  // namespace unishard::detail
