#pragma once
// JSON with one large array, read an item at a time: a tree takes ten times the memory of its text.
// Private to format.
#include "unishard/format/json.hpp"

#include <string_view>
#include <vector>

namespace unishard::detail {

/// As parse_json(), but the items of array `key` of the outermost object, if it has one, are left
/// as text in `items` (parts of `text`, each JSON by itself), and the array is empty in what is
/// returned.
Json parse_json_but_items(std::string_view text, std::string_view key,
                          std::vector<std::string_view>& items, std::string_view what,
                          JsonLimits limits = {});

}  // namespace unishard::detail
