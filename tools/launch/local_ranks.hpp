#pragma once
#include "launch/host_job.hpp"
#include "launch/rank_failure.hpp"
#include "support/descriptor.hpp"
#include "support/poll_set.hpp"

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace unishard::tools {

/// Ranks that run on this machine as children of this process. Each leads its own process group and
/// is killed when this process dies; processes that a rank leaves behind are killed when it ends.
/// There are no threads, because PR_SET_PDEATHSIG refers to the thread that forked. Not
/// thread-safe.
class LocalRanks {
 public:
  /// Receives bytes that a rank wrote to descriptor 1 or 2; none: the stream has ended.
  using OnOutput = std::function<void(std::uint32_t rank, int stream, std::string_view bytes)>;

  /// With `on_output`, the ranks write to pipes; without it, to this process's own output.
  explicit LocalRanks(OnOutput on_output) : on_output_(std::move(on_output)) {}
  /// Kills the ranks that still run, and waits for them.
  ~LocalRanks();
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;

  /// Starts the ranks of `job`. A program that cannot be executed is a rank that ends with 127.
  /// Throws: Io when no process can be started.
  void start(const HostJob& job);
  std::size_t running() const;
  /// Sends a signal to the process groups of all running ranks.
  void send(int number) const;
  /// Adds the pipes of the ranks.
  void add_to(PollSet& polled);
  /// Calls `on_end` for each rank that has ended since the last call.
  void reap(const std::function<void(const RankFailure&)>& on_end);
  /// Reads what is still in the pipes of ranks that have ended, and closes them.
  void finish_output();

 private:
  struct Stream {
    Descriptor pipe;
    int target;
  };
  struct Rank {
    std::uint32_t number = 0;
    pid_t pid = 0;
    bool is_running = false;
    std::vector<Stream> streams = {};
  };

  void start_rank(const HostJob& job, std::uint32_t local_rank);
  Descriptor open_stream(Rank& rank, int target) const;
  bool reap_one(Rank& rank, int flags, RankFailure& outcome);
  void drain(const Rank& rank, Stream& stream);

  OnOutput on_output_;
  std::vector<Rank> ranks_;
};

}  // namespace unishard::tools
