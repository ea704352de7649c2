#pragma once
// Real child processes for tests.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace unishard::test {

struct ProcessResult {
  int status = 0;  ///< exit code, or 128 + signal
  std::string out, err;
  std::uint64_t peak_rss_bytes = 0;
};

using Environment = std::vector<std::pair<std::string, std::string>>;

/// A started process whose output goes to temporary files. wait() must be called.
class Process {
 public:
  Process(std::vector<std::string> argv, Environment env = {},
          std::uint64_t address_space_limit = 0);
  ~Process();  ///< kills what still runs
  Process(Process&& other) noexcept;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  Process& operator=(Process&&) = delete;

  int pid() const { return pid_; }
  void signal(int number) const;
  bool running();
  /// What it printed on standard output so far.
  std::string output_so_far() const;
  ProcessResult wait();

 private:
  std::string text_of(int descriptor) const;
  int pid_ = -1;
  int out_ = -1, err_ = -1;
  int status_ = 0;
  bool reaped_ = false;
  std::uint64_t peak_rss_bytes_ = 0;
};

/// Starts and waits. `address_space_limit` (bytes, 0: none) is set with setrlimit(RLIMIT_AS).
ProcessResult run(std::vector<std::string> argv, Environment env = {},
                  std::uint64_t address_space_limit = 0);

/// A TCP port that was free a moment ago.
int free_port();

/// A port of the loopback at which connections succeed and nobody ever answers.
class SilentServer {
 public:
  SilentServer();
  ~SilentServer();
  SilentServer(const SilentServer&) = delete;
  SilentServer& operator=(const SilentServer&) = delete;

  int port() const { return port_; }

 private:
  int descriptor_ = -1;
  int port_ = 0;
};

}  // namespace unishard::test
