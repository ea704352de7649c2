#pragma once
// Makes the n-th system call of this process that changes a file or a folder fail. A program that
// links this file replaces functions of the C library, so everything below Storage runs unchanged.
#include <cstdint>
#include <string>

namespace unishard::test {

struct FailingCall {
  std::uint64_t at = 0;  ///< number of the call, from 0
  int error = 0;         ///< errno; 0: the call works, but a write stores only half of its bytes
};

/// Counts calls from 0 and makes `call` fail, until stop_failing().
void start_failing(FailingCall call);
/// Only counts calls.
void start_counting();
/// Returns the number of calls.
std::uint64_t stop_failing();
/// Returns the name of the call that failed; empty when none did.
std::string failed_call();

}  // namespace unishard::test
