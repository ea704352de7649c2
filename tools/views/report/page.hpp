#pragma once
// The report as one HTML page that needs nothing from outside.
// Thread safety: pure functions.
#include "unishard/format/json.hpp"

#include <string>
#include <string_view>

namespace unishard::cli {

/// Returns the page. Its content security policy allows its own style and script, by their digests,
/// and nothing else. What `data` holds appears in it only as JSON without "<", so no name can
/// become markup.
std::string report_page(const Json& data);

/// Returns the text with which every page of report_page() begins, and no other page.
std::string_view report_mark();

}  // namespace unishard::cli
