#pragma once
// JSON as Python writes it.
#include <string>
#include <string_view>

namespace unishard::converters {

/// Returns the text with null for NaN and infinities, which Python writes and JSON lacks.
std::string strict_json(std::string_view text);

}  // namespace unishard::converters
