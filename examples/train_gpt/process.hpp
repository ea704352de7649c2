#pragma once
// Prepares the process before its first line of work, and ends it after an exception.
#include <cstdint>
#include <string>

namespace train_gpt {

/// Call it once, at the start of main(). Afterwards no opened file becomes standard output or
/// error, a failed write is an error and no signal, a checkpoint of many ranks may have as many
/// open files, and no exception ends in a backtrace.
void prepare_process();

/// Throws Io when the system refuses as many threads as a rank with `threads` threads starts.
/// Libraries would otherwise end the process at that point.
void require_threads(int threads);

/// What to do without memory, where nothing is known of the run.
inline constexpr const char* kMemoryHint = "use a smaller model or batch, or more ranks";

/// Prints the current exception's message, and returns the exit status. `memory_hint` is what to do
/// when there is no memory left. Call it in a catch block.
int report_exception(std::uint32_t rank, const std::string& memory_hint);

}  // namespace train_gpt
