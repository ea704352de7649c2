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

/// Lets the library of matrix products allocate its memory, which it would try to do for ever in
/// its first product where `threads` threads have too little. Throws: std::bad_alloc instead.
void prepare_products(int threads);

/// What to do when something has run out; here, where nothing is known of the run.
struct Hints {
  std::string memory = "use a smaller model or batch, or more ranks";
  std::string files = {};  ///< the room that training state in files takes
};

/// Prints the current exception's message, and returns the exit status. Call it in a catch block.
int report_exception(std::uint32_t rank, const Hints& hints);

}  // namespace train_gpt
