#pragma once
// Lets the n-th system call of this process that changes a file or a folder go wrong. The functions
// of the C library are replaced in the program that links this: everything below Storage runs as
// it is.
#include <cstdint>
#include <string>

namespace unishard::test {

struct FailingCall {
  std::uint64_t at = 0;  ///< number of the call, from 0
  int error = 0;         ///< errno; 0: the call works, but a write does only half of its bytes
};

/// Counts from 0 again and lets `call` go wrong, until stop_failing().
void start_failing(FailingCall call);
/// Counts only.
void start_counting();
/// Returns how many calls there were.
std::uint64_t stop_failing();
/// Name of the call that went wrong; empty when none did.
std::string failed_call();

}  // namespace unishard::test
