#pragma once
// Conversions as text and JSON: what `convert`, `zero_to_fp32`, and `reshard` of other formats
// print. tools/README.md has the JSON schemas.
#include "unishard/format/json.hpp"

#include "workflows/conversion.hpp"

#include <string>

namespace unishard::cli {

/// The plan; reports of finished conversions add to it.
Json conversion_json(const tools::Conversion& conversion, const converters::Source& source);
/// The plan, and everything that would not arrive.
std::string conversion_text(const tools::Conversion& conversion, const converters::Source& source);

/// The report of `zero_to_fp32`, and its notes.
Json consolidation_json(const tools::Conversion& conversion, const tools::ConversionResult& result);
std::vector<std::string> consolidation_notes(const tools::Conversion& conversion);
/// Returns how many of the wanted tensors are missing, for the last line; empty when none is.
std::string missing_text(const tools::Conversion& conversion);
/// The line that ends a consolidation; `summary` tells bytes, seconds and speed.
std::string consolidated_text(const tools::Conversion& conversion, const std::string& summary);

/// These print to standard error, nothing where there is nothing.
void say_tensors(const tools::ConversionPlan& plan, const Catalog& source);  ///< dtypes in and out
void say_notes(const std::vector<std::string>& notes);
void say_side_files(const converters::SideFiles& files);
/// What a conversion will not write and what it takes along, unless the report is JSON or quiet.
void say_before(const tools::Conversion& conversion, bool is_json, bool is_quiet);
/// Names the tensors with numbers that became infinite, which no option silences.
void say_overflow(const tools::ConversionResult& result);
/// Names the tensors that are not as they were, and says that nothing was published.
void say_different(const std::vector<std::string>& labels);

}  // namespace unishard::cli
