#pragma once
#include "launch/byte_queue.hpp"
#include "launch/host_job.hpp"
#include "launch/line_prefixer.hpp"
#include "launch/local_ranks.hpp"
#include "launch/message.hpp"
#include "launch/rank_failure.hpp"
#include "support/descriptor.hpp"
#include "support/poll_set.hpp"

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unishard::tools {

/// What an agent says about its host before the job starts.
struct HostFacts {
  std::uint16_t free_port = 0;
  std::string ssh_address;  ///< under which the launcher reached it; empty: unknown
  std::vector<std::pair<std::string, std::string>> interfaces;  ///< names and addresses
};

/// The ranks of another host, through an agent there (agent.hpp) that a process of ours, ssh,
/// connects to. When this object or this process ends, so do the ranks. Not thread-safe, except
/// beat().
class RemoteHost {
 public:
  using OnEnd = std::function<void(const RankFailure&)>;

  /// Starts `connect`, the words that run an agent on the host. What it prints to standard error
  /// appears behind the host's name.
  /// Throws: Io when no process can be started.
  RemoteHost(std::string name, std::vector<std::string> connect, LocalRanks::OnOutput on_output,
             OnEnd on_end);
  ~RemoteHost();
  RemoteHost(const RemoteHost&) = delete;
  RemoteHost& operator=(const RemoteHost&) = delete;

  const std::string& name() const { return name_; }
  /// Returns what the agent said; nullopt before it has answered.
  const std::optional<HostFacts>& facts() const { return facts_; }
  /// Starts the ranks of this host. Pre: facts() has a value; called once.
  void start(const HostJob& job);
  /// Sends a signal to the host's ranks.
  void send(int number);
  /// Tells the agent that the launcher is alive. Thread-safe.
  void beat();
  /// Ends the connection, for a reason that lost() then returns.
  void abandon(std::string reason);
  void add_to(PollSet& polled);
  /// Notices the end of the connection.
  void reap();
  /// Returns true once the connection has ended and all output was passed on.
  bool is_over() const { return is_over_; }
  /// Returns true when the agent has sent something that was not read yet.
  bool has_news() const;
  /// Returns true once all ranks of this host have ended.
  bool has_ended() const { return is_started_ && outstanding_ == 0; }
  /// Returns why the host was lost; nullopt while it is not, and when all of its ranks have ended.
  std::optional<std::string> lost() const;

 private:
  void push(const Message& message);
  void receive();
  void receive_errors();
  void obey(const Message& message);
  void take_facts(const std::string& payload);
  std::uint32_t rank_of(std::string_view text) const;

  std::string name_;
  LocalRanks::OnOutput on_output_;
  OnEnd on_end_;
  pid_t pid_ = 0;
  std::mutex mutex_;  ///< of to_agent_
  std::optional<ByteQueue> to_agent_;
  Descriptor from_agent_, errors_;
  MessageReader reader_;
  LinePrefixer error_lines_;
  std::string last_errors_;
  std::optional<HostFacts> facts_;
  std::string reason_;
  std::uint32_t first_rank_ = 0, ranks_ = 0;
  std::uint32_t outstanding_ = 0;  ///< ranks that have not ended
  bool is_started_ = false, is_over_ = false;
};

}  // namespace unishard::tools
