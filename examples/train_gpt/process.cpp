#include "process.hpp"

#include "unishard/format/error.hpp"

#include "console.hpp"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <exception>
#include <latch>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace train_gpt {
namespace {

using unishard::ErrorCode;

/// Those that save, load and talk to the other ranks.
constexpr int kThreadsBeside = 16;

/// The stand-in of a closed descriptor allows nothing that it is used for, so that what is printed
/// is known to be lost.
void occupy_standard_descriptors() {
  for (int wanted = STDIN_FILENO; wanted <= STDERR_FILENO; ++wanted) {
    if (::fcntl(wanted, F_GETFD) >= 0) continue;
    const int opened = ::open("/dev/null", wanted == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    if (opened >= 0 && opened != wanted) ::close(opened);
  }
}

void raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// Handles an exception that a library's thread or a destructor threw and that no code can catch.
[[noreturn]] void on_terminate() {
  int status = exit_status(ErrorCode::Internal);
  if (std::current_exception()) {
    try {
      throw;
    } catch (...) {
      status = report_exception(0, kMemoryHint);
    }
  } else {
    say_error(0, "error", "internal: the program cannot go on");
  }
  ::_exit(status);
}

/// LibTorch's texts go on with a backtrace.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

void prepare_process() {
  std::set_terminate(on_terminate);
  occupy_standard_descriptors();
  for (const int number : {SIGPIPE, SIGXFSZ}) std::signal(number, SIG_IGN);
  raise_file_limit();
  // Released units go back to the system; smaller buffers are kept, since page faults cost time.
  ::mallopt(M_MMAP_THRESHOLD, 4 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 16 << 20);
}

void require_threads(int threads) {
  std::latch end(1);
  std::vector<std::jthread> started;
  try {
    for (int i = 0; i < threads + kThreadsBeside; ++i) started.emplace_back([&] { end.wait(); });
    end.count_down();
  } catch (const std::system_error& error) {
    end.count_down();
    raise(ErrorCode::Io,
          fmt::format("starting thread {} of {}: {}", started.size() + 1, threads + kThreadsBeside,
                      error.code().message()),
          "raise the limit of processes (ulimit -u), or use fewer --threads");
  }
}

int report_exception(std::uint32_t rank, const std::string& memory_hint) {
  try {
    throw;
  } catch (const unishard::Error& error) {
    const bool is_full = error.code() == ErrorCode::NoSpace;
    say_error(rank, "error", error.what(),
              error.hint() + (is_full ? " (with --resume, where the run has saved)" : ""));
    return exit_status(error.code());
  } catch (const std::bad_alloc&) {
    say_error(rank, "error",
              fmt::format("out of memory at {:.3g} GB", process_megabytes("VmHWM") / 1e3),
              memory_hint);
    return exit_status(ErrorCode::Io);
  } catch (const std::system_error& error) {
    say_error(rank, "error", fmt::format("the system refused: {}", error.what()),
              "check the limits of this session (ulimit -a)");
    return exit_status(ErrorCode::Io);
  } catch (const c10::Error& error) {
    const std::string text = first_line(error.what_without_backtrace());
    const bool is_memory = text.find("can't allocate memory") != std::string::npos ||
                           text.find("out of memory") != std::string::npos;
    say_error(rank, "error", text, is_memory ? memory_hint : "please report this");
    return exit_status(is_memory ? ErrorCode::Io : ErrorCode::Internal);
  } catch (const std::exception& error) {
    say_error(rank, "error", fmt::format("internal: {}", first_line(error.what())),
              "please report this");
  } catch (...) {
    say_error(rank, "error", "internal: something was thrown that is no exception");
  }
  return exit_status(ErrorCode::Internal);
}

}  // namespace train_gpt
