#include "launch/local_ranks.hpp"

#include "unishard/format/error.hpp"

#include "launch/child_process.hpp"
#include "launch/rank_environment.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

namespace unishard::tools {

LocalRanks::~LocalRanks() {
  send(SIGKILL);
  RankFailure ignored;
  for (Rank& rank : ranks_) {
    if (rank.is_running) reap_one(rank, 0, ignored);
  }
}

void LocalRanks::start(const HostJob& job) {
  ranks_.reserve(job.ranks);
  for (std::uint32_t i = 0; i < job.ranks; ++i) start_rank(job, i);
}

namespace {

std::vector<std::string> command_of(const HostJob& job, std::uint32_t local_rank) {
  std::vector<std::string> command = job.command;
  if (job.words_before_local_rank != 0) {
    command.insert(command.begin() + job.words_before_local_rank,
                   "--local_rank=" + std::to_string(local_rank));
  }
  return command;
}

}  // namespace

void LocalRanks::start_rank(const HostJob& job, std::uint32_t local_rank) {
  Rank& rank = ranks_.emplace_back(Rank{.number = job.first_rank + local_rank});
  ChildProcess child{.command = command_of(job, local_rank),
                     .environment = rank_environment({.rank = rank.number,
                                                      .world_size = job.world_size,
                                                      .local_rank = local_rank,
                                                      .local_size = job.ranks,
                                                      .master_addr = job.master_addr,
                                                      .master_port = job.master_port},
                                                     job.variables),
                     .folder = job.folder};
  Descriptor out, err;
  if (on_output_) {
    out = open_stream(rank, STDOUT_FILENO);
    err = open_stream(rank, STDERR_FILENO);
    child.out = out.get();
    child.err = err.get();
  }
  rank.pid = start_child(std::move(child));
  rank.is_running = true;
}

Descriptor LocalRanks::open_stream(Rank& rank, int target) const {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) raise_errno("opening", "a pipe", errno);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  rank.streams.push_back({Descriptor(ends[0]), target});
  return Descriptor(ends[1]);
}

std::size_t LocalRanks::running() const {
  return static_cast<std::size_t>(std::ranges::count(ranks_, true, &Rank::is_running));
}

void LocalRanks::send(int number) const {
  for (const Rank& rank : ranks_) {
    if (rank.is_running) ::kill(-rank.pid, number);
  }
}

void LocalRanks::add_to(PollSet& polled) {
  for (Rank& rank : ranks_) {
    for (Stream& stream : rank.streams) {
      if (stream.pipe.get() >= 0)
        polled.add(stream.pipe.get(), POLLIN, [this, &rank, &stream] { drain(rank, stream); });
    }
  }
}

void LocalRanks::reap(const std::function<void(const RankFailure&)>& on_end) {
  for (Rank& rank : ranks_) {
    RankFailure outcome;
    if (rank.is_running && reap_one(rank, WNOHANG, outcome)) on_end(outcome);
  }
}

/// Reaps the rank if it has ended. Until it is reaped, its process group cannot be reused, so
/// processes that it left there are killed first.
bool LocalRanks::reap_one(Rank& rank, int flags, RankFailure& outcome) {
  siginfo_t ended{};
  int result = 0;
  do {
    result = ::waitid(P_PID, static_cast<id_t>(rank.pid), &ended, WEXITED | WNOWAIT | flags);
  } while (result != 0 && errno == EINTR);
  if (result != 0 || ended.si_pid == 0) return false;
  ::kill(-rank.pid, SIGKILL);
  int status = 0;
  ::waitpid(rank.pid, &status, 0);
  rank.is_running = false;
  outcome = {.rank = rank.number,
             .pid = rank.pid,
             .exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0,
             .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0};
  return true;
}

/// Passes on the bytes in the pipe, 64 KiB at most, so that a rank that writes without a pause does
/// not keep the others waiting.
void LocalRanks::drain(const Rank& rank, Stream& stream) {
  std::array<char, 65536> buffer;
  const ssize_t count = ::read(stream.pipe.get(), buffer.data(), buffer.size());
  if (count < 0) return;
  if (count == 0) stream.pipe.close();
  on_output_(rank.number, stream.target, {buffer.data(), static_cast<std::size_t>(count)});
}

void LocalRanks::finish_output() {
  for (Rank& rank : ranks_) {
    for (Stream& stream : rank.streams) {
      std::array<char, 65536> buffer;
      while (stream.pipe.get() >= 0) {
        const ssize_t count = ::read(stream.pipe.get(), buffer.data(), buffer.size());
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) stream.pipe.close();  // a process outside of the group may hold it open
        on_output_(rank.number, stream.target,
                   {buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0))});
      }
    }
  }
}

}  // namespace unishard::tools
