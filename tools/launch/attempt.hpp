#pragma once
// One start of a job on its hosts, from the first connection to the end of the last rank.
#include "launch/failure_policy.hpp"
#include "launch/heartbeat.hpp"
#include "launch/launcher.hpp"
#include "launch/local_ranks.hpp"
#include "launch/rank_output.hpp"
#include "launch/remote_host.hpp"
#include "launch/signal_queue.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace unishard::tools {

struct AttemptResult {
  std::optional<RankFailure> failure;
  std::vector<std::string> lost_hosts;
  std::optional<int> stopped_by = {};  ///< the signal that this process got
  bool has_started = false;            ///< false: the signal came before the ranks were started
};

/// One loop over one poll(): signals, the pipes of local ranks, and the connections to other hosts.
/// Not thread-safe.
class Attempt {
 public:
  /// Lifetime: the arguments must outlive this object.
  Attempt(const LaunchOptions& options, const std::vector<HostSlots>& hosts, std::uint32_t restart,
          SignalQueue& signals, RankOutput& output);

  /// Runs the job to its end.
  /// Throws: Io when no process can be started; InvalidArgument when the first host has no address
  /// that the others can use.
  AttemptResult run();

 private:
  void connect();
  void start_ranks();
  HostJob job_of(std::size_t host, std::uint32_t first_rank) const;
  HostFacts facts_of_first() const;
  std::string master_address(const HostFacts& first) const;
  RemoteHost* remote(const std::string& name) const;
  bool is_settled() const;
  bool is_running() const;
  void step();
  void note_lost_hosts();
  void send(int number);
  void bound_times();

  const LaunchOptions& options_;
  const std::vector<HostSlots>& hosts_;
  std::uint32_t restart_;
  SignalQueue& signals_;
  RankOutput& output_;
  FailurePolicy policy_;
  AttemptResult result_;
  std::uint32_t world_size_ = 0;
  std::string master_addr_;
  std::uint16_t master_port_ = 0;
  std::optional<FailurePolicy::Clock::time_point> connect_until_, kill_until_, farewell_until_;
  LocalRanks local_;
  std::vector<std::unique_ptr<RemoteHost>> remote_;
  std::optional<Heartbeat> heartbeat_;  ///< ends before the hosts
};

}  // namespace unishard::tools
