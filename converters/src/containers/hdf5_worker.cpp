#include "containers/hdf5_worker.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/hdf5_library.hpp"
#include "unishard/format/memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>

namespace unishard::converters::hdf5 {
namespace {

// The child answers kDone and the result, or kFailed and the error's code, message, NUL and hint.
// Each message is preceded by its length.
constexpr char kDone = 'd';
constexpr char kFailed = 'f';

/// The parent's ends of all sockets. A child closes them, because an open copy would keep another
/// child alive. Guarded by the Hdf5Lock.
std::set<int>& open_sockets() {
  static std::set<int> sockets;
  return sockets;
}

bool send_all(int socket, const char* data, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t sent = send(socket, data, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    data += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool receive_all(int socket, char* data, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = recv(socket, data, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    data += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool send_message(int socket, const std::string& text) {
  const std::uint64_t bytes = text.size();
  std::array<char, sizeof bytes> head;
  std::memcpy(head.data(), &bytes, sizeof bytes);
  return send_all(socket, head.data(), head.size()) && send_all(socket, text.data(), text.size());
}

/// Returns the next message, or nullopt when the other process has ended. The buffer grows only
/// with bytes that arrive, because a child that libhdf5 has damaged may send any length.
std::optional<std::string> receive_message(int socket) {
  constexpr std::uint64_t kStep = std::uint64_t{64} << 20;
  std::uint64_t bytes = 0;
  std::array<char, sizeof bytes> head;
  if (!receive_all(socket, head.data(), head.size())) return std::nullopt;
  std::memcpy(&bytes, head.data(), sizeof bytes);
  std::string text;
  while (text.size() < bytes) {
    const std::size_t have = text.size();
    text.resize(have + std::min(bytes - have, kStep));
    if (!receive_all(socket, text.data() + have, text.size() - have)) return std::nullopt;
  }
  return text;
}

std::string failed(ErrorCode code, std::string_view message, std::string_view hint) {
  std::string out = {kFailed, static_cast<char>(code)};
  out += message;
  out += '\0';
  out += hint;
  return out;
}

std::string answer(const Hdf5Worker::Work& work, const std::string& request) {
  try {
    return kDone + work(request);
  } catch (const Error& error) {
    return failed(error.code(), error.what(), error.hint());
  } catch (const std::bad_alloc&) {
    return failed(ErrorCode::MemoryLimit, "HDF5 asks for more memory than there is", "");
  } catch (const std::exception& error) {
    return failed(ErrorCode::Internal, error.what(), "");
  }
}

/// Kills the process when the next request takes longer than kSeconds of processor time.
void limit_processor_time() {
  constexpr rlim_t kSeconds = 300;
  rusage used{};
  rlimit limit{};
  if (getrusage(RUSAGE_SELF, &used) != 0 || getrlimit(RLIMIT_CPU, &limit) != 0) return;
  const auto spent = static_cast<rlim_t>(used.ru_utime.tv_sec + used.ru_stime.tv_sec);
  limit.rlim_cur = std::min(limit.rlim_max, spent + kSeconds);
  setrlimit(RLIMIT_CPU, &limit);
}

/// Limits the memory that libhdf5 can allocate for a file: description_limit() beyond what the
/// process has now.
void limit_memory() {
  const std::uint64_t used = mapped_bytes().all;
  rlimit limit{};
  if (used == 0 || description_limit() > RLIM_INFINITY - used) return;
  if (getrlimit(RLIMIT_AS, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, used + description_limit());
  setrlimit(RLIMIT_AS, &limit);
}

[[noreturn]] void run_child(int socket, const Hdf5Worker::Work& work) {
  for (const int other : open_sockets()) close(other);
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  signal(SIGXCPU, SIG_DFL);
  limit_memory();
  const int quiet = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (quiet >= 0) dup2(quiet, STDERR_FILENO);
  while (const auto request = receive_message(socket)) {
    limit_processor_time();
    if (!send_message(socket, answer(work, *request))) break;  // the parent has closed its end
  }
  _exit(0);
}

[[noreturn]] void raise_failed(const std::string& text) {
  const std::size_t end = std::min(text.find('\0', 2), text.size());
  const std::string hint = end < text.size() ? text.substr(end + 1) : "";
  raise(static_cast<ErrorCode>(text[1]), text.substr(2, end - 2), hint);
}

}  // namespace

Hdf5Worker::Hdf5Worker(std::string what, const Work& work) : what_(std::move(what)) {
  // No other thread may be inside HDF5 during the fork.
  const Hdf5Lock lock;
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    raise_errno("make a socket for", what_, errno);
  child_ = fork();
  const int fork_error = errno;
  if (child_ == 0) {
    close(ends[0]);
    run_child(ends[1], work);
  }
  close(ends[1]);
  if (child_ < 0) {
    close(ends[0]);
    raise_errno("start a process to read", what_, fork_error);
  }
  socket_ = ends[0];
  open_sockets().insert(socket_);
}

Hdf5Worker::~Hdf5Worker() {
  {
    const Hdf5Lock lock;
    open_sockets().erase(socket_);
    close(socket_);
  }
  kill(child_, SIGKILL);  // it has nothing to clean up
  while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Hdf5Worker::raise_dead() {
  raise(ErrorCode::Corrupt, fmt::format("{}: HDF5 crashed while reading it", what_),
        "the file is damaged");
}

std::string Hdf5Worker::ask(const std::string& request) {
  const std::scoped_lock lock(mutex_);
  if (!send_message(socket_, request)) raise_dead();
  std::optional<std::string> text = receive_message(socket_);
  if (!text || text->empty() || (text->front() == kFailed && text->size() < 2)) raise_dead();
  if (text->front() == kFailed) raise_failed(*text);
  text->erase(0, 1);
  return std::move(*text);
}

}  // namespace unishard::converters::hdf5
