#include "process.hpp"

#include "unishard/format/error.hpp"

#include "console.hpp"

#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <exception>
#include <latch>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
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
      status = report_exception(0, {});
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
    raise(
        ErrorCode::Io,
        fmt::format("starting thread {} of {}: {}", started.size() + 1, threads + kThreadsBeside,
                    error.code().message()),
        "raise the limits of processes and of memory (ulimit -u, -d, -v), or use fewer --threads");
  }
}

void prepare_products(int threads) {
  // OpenBLAS maps 128 MiB for each thread, and begins anew as long as that fails.
  const std::size_t bytes = (static_cast<std::size_t>(threads) * 128 + 32) << 20;
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  ::munmap(memory, bytes);
  constexpr std::int64_t kSide = 256;  // smaller products may do without
  const at::Tensor matrix = at::ones({kSide, kSide});
  at::matmul(matrix, matrix);
}

int report_exception(std::uint32_t rank, const Hints& hints) {
  try {
    throw;
  } catch (const unishard::Error& error) {
    const bool is_full = error.code() == ErrorCode::NoSpace;
    const bool lacks_files =
        is_full && !hints.files.empty() && std::string_view(error.what()).starts_with("offload: ");
    say_error(rank, "error", error.what(),
              lacks_files ? fmt::format("{}: {}", error.hint(), hints.files)
              : is_full   ? error.hint() + " (with --resume, where the run has saved)"
                          : error.hint());
    return exit_status(error.code());
  } catch (const std::bad_alloc&) {
    say_error(rank, "error",
              fmt::format("out of memory at {:.3g} GB", process_megabytes("VmHWM") / 1e3),
              hints.memory);
    return exit_status(ErrorCode::Io);
  } catch (const std::system_error& error) {
    say_error(rank, "error", fmt::format("the system refused: {}", error.what()),
              "check the limits of this session (ulimit -a)");
    return exit_status(ErrorCode::Io);
  } catch (const c10::Error& error) {
    const std::string text = first_line(error.what_without_backtrace());
    const bool is_memory = text.find("can't allocate memory") != std::string::npos ||
                           text.find("out of memory") != std::string::npos;
    say_error(rank, "error", text, is_memory ? hints.memory : "please report this");
    return exit_status(is_memory ? ErrorCode::Io : ErrorCode::Internal);
  } catch (const std::exception& error) {
    const std::string text = first_line(error.what());
    if (text.find("errno: 24") != text.npos || text.find("Too many open files") != text.npos) {
      say_error(rank, "error", text, "raise the limit of open files (ulimit -n)");
      return exit_status(ErrorCode::Io);
    }
    say_error(rank, "error", fmt::format("internal: {}", text), "please report this");
  } catch (...) {
    say_error(rank, "error", "internal: something was thrown that is no exception");
  }
  return exit_status(ErrorCode::Internal);
}

}  // namespace train_gpt
