#pragma once
// A Report as JSON: what the page shows, and the summary for programs.
// Thread safety: pure functions.
#include "unishard/format/json.hpp"

#include "workflows/report/report.hpp"

#include <string>

namespace unishard::cli {

/// Returns what the page shows, in columns and with few digits, so that the page stays small.
/// The page's script (script/*.js) reads it. Names and messages are as they are in the files.
Json report_page_data(const tools::Report& report);

/// Returns JSON by the schema in tools/README.md. `output` is empty when the page went to standard
/// output.
Json report_summary(const tools::Report& report, const std::string& output,
                    std::uint64_t page_bytes);

}  // namespace unishard::cli
