#pragma once
// What the process is before its first line of work, and how it ends when something was thrown.
#include <cstdint>

namespace train_gpt {

/// Once, at the start of main(): no file that is opened becomes standard output or error, what
/// cannot be written is an error and not a signal, a checkpoint of many ranks may have as many open
/// files, and no exception ends in a backtrace.
void prepare_process();

/// Throws Io when the system refuses as many threads as a rank with `threads` threads starts, which
/// libraries below answer by ending the process.
void require_threads(int threads);

/// Inside of a catch block: prints the sentence of what was thrown; returns the exit status.
int report_exception(std::uint32_t rank);

}  // namespace train_gpt
