#pragma once
// Strict JSON for objects with very many keys: parse_json() of the format library limits them,
// because its objects keep their order and are searched linearly. A safetensors header or index has
// one key per tensor.
#include <nlohmann/json.hpp>

#include <string_view>

namespace unishard::converters::safetensors {

using LargeJson = nlohmann::json;

/// No duplicate keys, at most 64 levels. Throws Corrupt naming `what` and the byte where reading
/// stopped.
LargeJson parse_large_json(std::string_view text, std::string_view what);

}  // namespace unishard::converters::safetensors
