#include "hdf5/own_process.hpp"

#include "unishard/format/error.hpp"

#include "shard/hdf5_library.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

namespace unishard::converters::hdf5 {
namespace {

// What the child sends: kDone and the result, or kFailed, the error's code, message, NUL and hint.
constexpr char kDone = 'd';
constexpr char kFailed = 'f';

constexpr rlim_t kProcessorSeconds = 300;

std::string failed(ErrorCode code, std::string_view message, std::string_view hint) {
  std::string out = {kFailed, static_cast<char>(code)};
  out += message;
  out += '\0';
  out += hint;
  return out;
}

std::string answer(const std::function<std::string()>& work) {
  try {
    return kDone + work();
  } catch (const Error& error) {
    return failed(error.code(), error.what(), error.hint());
  } catch (const std::bad_alloc&) {
    return failed(ErrorCode::Corrupt, "HDF5 asks for more memory than there is", "");
  } catch (const std::exception& error) {
    return failed(ErrorCode::Internal, error.what(), "");
  }
}

[[noreturn]] void run_child(int out, const std::function<std::string()>& work) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const rlimit no_endless_loop{kProcessorSeconds, kProcessorSeconds};
  setrlimit(RLIMIT_CPU, &no_endless_loop);
  const int quiet = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (quiet >= 0) dup2(quiet, STDERR_FILENO);
  const std::string text = answer(work);
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t written = write(out, text.data() + at, text.size() - at);
    if (written < 0 && errno != EINTR) _exit(1);  // nobody listens any more
    if (written > 0) at += static_cast<std::size_t>(written);
  }
  _exit(0);
}

/// Up to the end; errno's number when reading fails.
int read_all(int in, std::string& out) {
  std::string block(std::size_t{1} << 20, '\0');
  while (true) {
    const ssize_t got = read(in, block.data(), block.size());
    if (got == 0) return 0;
    if (got > 0) {
      out.append(block, 0, static_cast<std::size_t>(got));
    } else if (errno != EINTR) {
      return errno;
    }
  }
}

bool ended_well(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return false;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

[[noreturn]] void raise_failed(const std::string& text) {
  const std::size_t end = std::min(text.find('\0', 2), text.size());
  const std::string hint = end < text.size() ? text.substr(end + 1) : "";
  raise(static_cast<ErrorCode>(text[1]), text.substr(2, end - 2), hint);
}

}  // namespace

std::string in_own_process(const std::string& what, const std::function<std::string()>& work) {
  int ends[2];
  pid_t child = -1;
  int fork_error = 0;
  {
    // The child must inherit no library that is at work, and no end of another child's pipe.
    const detail::Hdf5Lock lock;
    if (pipe2(ends, O_CLOEXEC) != 0) raise_errno("make a pipe for", what, errno);
    child = fork();
    if (child == 0) run_child(ends[1], work);
    fork_error = errno;
    close(ends[1]);
  }
  std::string text;
  const int read_error = child < 0 ? 0 : read_all(ends[0], text);
  close(ends[0]);
  if (child < 0) raise_errno("start a process to read", what, fork_error);
  const bool is_complete = ended_well(child);
  if (read_error != 0) raise_errno("receive the content of", what, read_error);
  if (!is_complete || text.empty() || (text[0] == kFailed && text.size() < 2)) {
    raise(ErrorCode::Corrupt, fmt::format("{}: HDF5 crashed while reading it", what),
          "the file is damaged");
  }
  if (text[0] == kFailed) raise_failed(text);
  text.erase(0, 1);
  return text;
}

}  // namespace unishard::converters::hdf5
