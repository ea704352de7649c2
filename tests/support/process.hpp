#pragma once
// Runs real child processes for tests.
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

/// A started process whose output goes to temporary files. Call wait().
class Process {
 public:
  Process(std::vector<std::string> argv, Environment env = {},
          std::uint64_t address_space_limit = 0);
  /// Kills the process if it is still running.
  ~Process();
  Process(Process&& other) noexcept;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  Process& operator=(Process&&) = delete;

  int pid() const { return pid_; }
  void signal(int number) const;
  bool running();
  /// Returns what the process has written to standard output so far.
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

/// Starts a process and waits for it. `address_space_limit` (bytes, 0: none) is set with
/// setrlimit(RLIMIT_AS).
ProcessResult run(std::vector<std::string> argv, Environment env = {},
                  std::uint64_t address_space_limit = 0);

/// Returns a TCP port that is free at the time of the call.
int free_port();

/// A port of the loopback that accepts connections and never answers.
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
