#include "process.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>

namespace unishard::test {

Process::Process(std::vector<std::string> argv, Environment env,
                 std::uint64_t address_space_limit) {
  out_ = ::memfd_create("stdout", MFD_CLOEXEC);
  err_ = ::memfd_create("stderr", MFD_CLOEXEC);
  if (out_ < 0 || err_ < 0) throw std::runtime_error("memfd_create failed");
  // Several processes write to the same file: each write must go to the end.
  ::fcntl(out_, F_SETFL, O_APPEND);
  ::fcntl(err_, F_SETFL, O_APPEND);
  std::vector<char*> arguments;
  for (std::string& argument : argv) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ > 0) return;
  ::dup2(out_, STDOUT_FILENO);
  ::dup2(err_, STDERR_FILENO);
  for (const auto& [name, value] : env) ::setenv(name.c_str(), value.c_str(), 1);
  if (address_space_limit > 0) {
    const rlimit limit{address_space_limit, address_space_limit};
    ::setrlimit(RLIMIT_AS, &limit);
  }
  ::execvp(arguments[0], arguments.data());
  ::_exit(127);
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      out_(std::exchange(other.out_, -1)),
      err_(std::exchange(other.err_, -1)),
      status_(other.status_),
      reaped_(other.reaped_),
      peak_rss_bytes_(other.peak_rss_bytes_) {}

Process::~Process() {
  if (pid_ > 0 && !reaped_) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (out_ >= 0) ::close(out_);
  if (err_ >= 0) ::close(err_);
}

void Process::signal(int number) const { ::kill(pid_, number); }

bool Process::running() {
  if (reaped_) return false;
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

std::string Process::text_of(int descriptor) const {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return {};
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  const ssize_t count = ::pread(descriptor, text.data(), text.size(), 0);
  text.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
  return text;
}

std::string Process::output_so_far() const { return text_of(out_); }

ProcessResult Process::wait() {
  rusage usage{};
  int status = 0;
  while (!reaped_ && ::wait4(pid_, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  if (!reaped_) {
    reaped_ = true;
    status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    peak_rss_bytes_ = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
  }
  return {status_, text_of(out_), text_of(err_), peak_rss_bytes_};
}

ProcessResult run(std::vector<std::string> argv, Environment env,
                  std::uint64_t address_space_limit) {
  return Process(std::move(argv), std::move(env), address_space_limit).wait();
}

namespace {

struct BoundSocket {
  int descriptor;
  int port;
};

BoundSocket bind_to_loopback() {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  if (::bind(descriptor, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    ::close(descriptor);
    throw std::runtime_error("no free port");
  }
  return {descriptor, ntohs(address.sin_port)};
}

}  // namespace

int free_port() {
  const auto [descriptor, port] = bind_to_loopback();
  ::close(descriptor);
  return port;
}

SilentServer::SilentServer() {
  const auto [descriptor, port] = bind_to_loopback();
  descriptor_ = descriptor;
  port_ = port;
  ::listen(descriptor_, 16);
}

SilentServer::~SilentServer() { ::close(descriptor_); }

}  // namespace unishard::test
