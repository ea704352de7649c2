#pragma once
// The processes that do one job together: of `--procs`, torchrun, mpirun or srun. They talk through
// small files in a folder that all of them see. When one fails, or dies, all fail.
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
  Path folder = {};  ///< the same for all and no other job's; made, and in the end removed
  std::chrono::milliseconds meet_limit = std::chrono::seconds(60);
  std::chrono::milliseconds silence_limit = std::chrono::seconds(60);  ///< then a peer is dead
  std::function<void()> check = {};  ///< called while waiting; may throw, to stop
};

/// PeerFailed: another process failed, for the reason `cause`.
class PeerError : public Error {
 public:
  PeerError(ErrorCode cause, std::string message, std::string hint)
      : Error(ErrorCode::PeerFailed, std::move(message), std::move(hint)), cause_(cause) {}
  ErrorCode cause() const noexcept { return cause_; }

 private:
  ErrorCode cause_;
};

/// gather() and agree() are called by all processes in the same order, each from one thread.
class Team {
 public:
  Team();  ///< of this process alone
  /// Waits for everybody. Throws PeerFailed naming who did not come.
  explicit Team(TeamOptions options);
  /// Rank 0 waits for the others to come here, and removes the folder.
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  std::uint32_t rank() const { return options_.rank; }
  std::uint32_t size() const { return options_.size; }
  bool is_first() const { return rank() == 0; }

  /// Everybody's text, by rank. Returns when all have called it. Throws PeerError when one never
  /// will, as agree() does.
  std::vector<std::string> gather(std::string_view text);

  /// Runs `body` here; returns when it is done everywhere. Throws what `body` threw, or a PeerError
  /// with what it threw elsewhere. Rank 0 throws after the others have thrown and destroyed what
  /// they held (or have died): it may clear up. May be nested.
  void agree(std::string_view action, const std::function<void()>& body);

  /// Throws PeerError when another process is known to have failed. Cheap; any thread.
  void check() const;

 private:
  class Link;  ///< to the others
  void tell(std::string_view action, const Error& error);
  [[noreturn]] void fail(std::string_view action, const Error& error);

  TeamOptions options_;
  std::unique_ptr<Link> link_;  ///< null when alone
  bool failed_ = false;
};

}  // namespace unishard::tools
