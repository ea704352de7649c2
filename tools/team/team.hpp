#pragma once
// The processes that do one job together, started by `--procs`, torchrun, mpirun or srun. They
// exchange small files in a folder that all of them see. When one fails or dies, all fail.
#include "unishard/format/error.hpp"
#include "unishard/format/storage.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::tools {

struct TeamOptions {
  std::uint32_t rank = 0, size = 1;
  /// The same for all processes, and not used by another job. Created, and removed at the end.
  Path folder = {};
  std::chrono::milliseconds meet_limit = std::chrono::seconds(60);
  /// After this time without a heartbeat a process is dead.
  std::chrono::milliseconds silence_limit = std::chrono::seconds(60);
  std::function<void()> check = {};       ///< called while waiting; may throw to stop
  std::function<int()> stop_signal = {};  ///< the signal that made `check` throw Cancelled
};

/// PeerFailed because another process failed with the code `cause`.
class PeerError : public Error {
 public:
  PeerError(ErrorCode cause, std::string message, std::string hint, int signal = 0)
      : Error(ErrorCode::PeerFailed, std::move(message), std::move(hint)),
        cause_(cause),
        signal_(signal) {}
  ErrorCode cause() const noexcept { return cause_; }
  /// The signal that stopped the other process, where `cause` is Cancelled. 0: unknown.
  int signal() const noexcept { return signal_; }

 private:
  ErrorCode cause_;
  int signal_;
};

/// All processes call gather() and agree() in the same order, each from one thread.
class Team {
 public:
  /// A team of this process alone.
  Team();
  /// Waits for all processes.
  /// Throws: PeerFailed, naming the processes that did not arrive.
  explicit Team(TeamOptions options);
  /// Rank 0 waits for the others to reach their destructors, and removes the folder.
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  std::uint32_t rank() const { return options_.rank; }
  std::uint32_t size() const { return options_.size; }
  bool is_first() const { return rank() == 0; }

  /// Returns the texts of all processes, by rank, once all have called it.
  /// Throws: PeerError, as agree() does, when a process will never call it.
  std::vector<std::string> gather(std::string_view text);

  /// Runs `body` here, and returns when it has finished in all processes. May be nested.
  /// Throws: what `body` threw, or a PeerError with what it threw in another process. Rank 0 throws
  /// last, after the others have thrown and destroyed their objects (or have died), so it may clean
  /// up.
  void agree(std::string_view action, const std::function<void()>& body);

  /// Throws PeerError when another process is known to have failed. Cheap. Thread-safe.
  void check() const;

 private:
  /// The connection to the other processes.
  class Link;
  void tell(std::string_view action, const Error& error);
  [[noreturn]] void fail(std::string_view action, const Error& error);

  TeamOptions options_;
  std::unique_ptr<Link> link_;  ///< null when alone
  bool failed_ = false;
};

}  // namespace unishard::tools
