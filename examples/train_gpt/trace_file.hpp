#pragma once
// Files for Chrome's trace viewer and Perfetto.
#include "unishard/format/json.hpp"
#include "unishard/trainer/communicator.hpp"

#include <string>
#include <string_view>

namespace train_gpt {

/// What such a file begins with; a file that begins otherwise is not replaced.
inline constexpr std::string_view kTraceStart = R"({"traceEvents":)";

/// Writes the events of all ranks, an array of each, to one file of rank 0. Times count from the
/// first event. Collective.
/// Throws: Io with the hint on all ranks when the file cannot be written.
void write_trace_file(const std::string& path, const unishard::Json& events,
                      unishard::trainer::Communicator& communicator, const std::string& hint);

}  // namespace train_gpt
