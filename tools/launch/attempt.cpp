#include "launch/attempt.hpp"

#include "unishard/format/error.hpp"

#include "launch/host_addresses.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>

namespace unishard::tools {
namespace {

using Clock = FailurePolicy::Clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kConnectTime{60};
/// How long a connection may be silent after the last rank has ended.
constexpr seconds kFarewell{10};
/// torchrun's and DeepSpeed's port, for hosts that cannot ask the first one for a free port.
constexpr std::uint16_t kUsualPort = 29500;

Clock::duration duration_of(double seconds_count) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds_count));
}

std::string joined(const std::vector<std::uint32_t>& slots) {
  return fmt::format("{}", fmt::join(slots, ","));
}

bool needs_pipes(const LaunchOptions& options, const std::vector<HostSlots>& hosts) {
  return options.prefix_output || !options.log_folder.empty() || hosts.size() > 1;
}

}  // namespace

Attempt::Attempt(const LaunchOptions& options, const std::vector<HostSlots>& hosts,
                 std::uint32_t restart, SignalQueue& signals, RankOutput& output)
    : options_(options),
      hosts_(hosts),
      restart_(restart),
      signals_(signals),
      output_(output),
      policy_(options.grace_seconds),
      local_(needs_pipes(options, hosts)
                 ? LocalRanks::OnOutput(
                       [this](std::uint32_t rank, int stream, std::string_view bytes) {
                         output_.write(rank, stream, bytes);
                       })
                 : nullptr) {
  for (const HostSlots& host : hosts_) world_size_ += static_cast<std::uint32_t>(host.slots.size());
  if (hosts_.empty()) world_size_ = options.ranks;
}

AttemptResult Attempt::run() {
  connect();
  while (!is_settled() && !result_.stopped_by) step();
  if (result_.failure || result_.stopped_by) return result_;
  start_ranks();
  while (is_running()) step();
  local_.finish_output();
  output_.finish();
  result_.failure = policy_.failure();
  return result_;
}

void Attempt::connect() {
  if (options_.node_rank) return;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  for (const HostSlots& host : hosts_) {
    if (is_this_host(host.name)) continue;
    const std::vector<std::string> agent = {program, "launch", "--agent", "--host-timeout",
                                            fmt::format("{}", options_.ssh.host_timeout)};
    remote_.push_back(std::make_unique<RemoteHost>(
        host.name, ssh_command(options_.ssh, host.name, agent),
        [this](std::uint32_t rank, int stream, std::string_view bytes) {
          output_.write(rank, stream, bytes);
        },
        [this](const RankFailure& outcome) { policy_.note(outcome, Clock::now()); }));
  }
  if (remote_.empty()) return;
  ::signal(SIGTSTP, SIG_IGN);  // agents take a launcher that is stopped for one that is gone
  heartbeat_.emplace(remote_);
  connect_until_ = Clock::now() + kConnectTime;
}

RemoteHost* Attempt::remote(const std::string& name) const {
  const auto found =
      std::ranges::find_if(remote_, [&](const auto& each) { return each->name() == name; });
  return found != remote_.end() ? found->get() : nullptr;
}

/// Returns true once each host has answered or is lost, so that one attempt finds all that are.
bool Attempt::is_settled() const {
  return std::ranges::all_of(
      remote_, [](const auto& host) { return host->facts().has_value() || host->is_over(); });
}

bool Attempt::is_running() const {
  return local_.running() > 0 ||
         std::ranges::any_of(remote_, [](const auto& host) { return !host->is_over(); });
}

HostFacts Attempt::facts_of_first() const {
  if (const RemoteHost* const first = hosts_.empty() ? nullptr : remote(hosts_[0].name))
    return *first->facts();
  return {.free_port = free_port(), .ssh_address = "", .interfaces = interface_addresses()};
}

std::string Attempt::master_address(const HostFacts& first) const {
  if (!options_.master_addr.empty()) return options_.master_addr;
  if (options_.node_rank) return hosts_[0].name;
  if (remote_.empty()) return "127.0.0.1";
  const auto found = std::ranges::find_if(first.interfaces, [&](const auto& interface) {
    return options_.interface.empty() || interface.first == options_.interface;
  });
  if (options_.interface.empty() && !first.ssh_address.empty()) return first.ssh_address;
  if (found != first.interfaces.end()) return found->second;
  raise(ErrorCode::InvalidArgument,
        options_.interface.empty()
            ? fmt::format("host {} has no address but loopback", hosts_[0].name)
            : fmt::format("host {} has no address on the network interface {}", hosts_[0].name,
                          quote(options_.interface)),
        "name an address of it with --master_addr");
}

void Attempt::start_ranks() {
  const HostFacts first = facts_of_first();
  master_addr_ = master_address(first);
  master_port_ = options_.master_port;
  if (master_port_ == 0) master_port_ = options_.node_rank ? kUsualPort : first.free_port;
  result_.has_started = true;
  if (hosts_.empty()) return local_.start(job_of(0, 0));
  std::uint32_t first_rank = 0;
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    const HostJob job = job_of(i, first_rank);
    first_rank += job.ranks;
    if (options_.node_rank && *options_.node_rank != i) continue;
    if (RemoteHost* const host = remote(hosts_[i].name))
      host->start(job);
    else
      local_.start(job);
  }
}

HostJob Attempt::job_of(std::size_t host, std::uint32_t first_rank) const {
  HostJob job{.command = options_.command,
              .words_before_local_rank = options_.words_before_local_rank,
              .folder = "",
              .variables = {},
              .first_rank = first_rank,
              .ranks = world_size_,
              .world_size = world_size_,
              .master_addr = master_addr_,
              .master_port = master_port_};
  if (!hosts_.empty()) {
    job.ranks = static_cast<std::uint32_t>(hosts_[host].slots.size());
    if (remote(hosts_[host].name) != nullptr) {
      job.folder = std::filesystem::current_path().string();
      job.variables = shared_variables();
    }
  }
  job.variables.insert(job.variables.end(), options_.variables.begin(), options_.variables.end());
  if (!hosts_.empty()) {
    job.variables.emplace_back("CUDA_VISIBLE_DEVICES", joined(hosts_[host].slots));
    job.variables.emplace_back("GROUP_RANK", std::to_string(host));
  }
  if (options_.max_restarts != 0)
    job.variables.emplace_back("TORCHELASTIC_RESTART_COUNT", std::to_string(restart_));
  return job;
}

void Attempt::send(int number) {
  local_.send(number);
  for (const auto& host : remote_) host->send(number);
}

void Attempt::step() {
  PollSet polled;
  polled.add(signals_.descriptor(), POLLIN, [this] {
    for (const int number : signals_.take()) {
      if (result_.stopped_by) policy_.kill_after_grace(Clock::now());
      result_.stopped_by = number;
      send(number);
    }
  });
  local_.add_to(polled);
  for (const auto& host : remote_) host->add_to(polled);
  milliseconds limit{1000};  // covers a missed wake-up
  if (const auto next = policy_.next()) {
    const auto left = std::chrono::ceil<milliseconds>(*next - Clock::now());
    limit = std::clamp(left, milliseconds(0), limit);
  }
  polled.wait(limit);
  local_.reap([this](const RankFailure& outcome) { policy_.note(outcome, Clock::now()); });
  for (const auto& host : remote_) host->reap();
  note_lost_hosts();
  bound_times();
  if (const auto number = policy_.due(Clock::now())) {
    send(*number);
    if (*number == SIGKILL) kill_until_ = Clock::now() + duration_of(options_.ssh.host_timeout * 2);
  }
}

void Attempt::note_lost_hosts() {
  for (const auto& host : remote_) {
    const auto why = host->lost();
    if (!why || std::ranges::count(result_.lost_hosts, host->name()) != 0) continue;
    result_.lost_hosts.push_back(host->name());
    policy_.note(
        {.exit_code = exit_status(ErrorCode::PeerFailed), .host = host->name(), .lost = *why},
        Clock::now());
    result_.failure = policy_.failure();
  }
}

/// Gives up hosts that take too long to answer or to end. A host whose output waits here, because
/// this process was kept waiting, is not late.
void Attempt::bound_times() {
  const auto now = Clock::now();
  const auto is_late = [&](const auto& limit) { return limit && now >= *limit; };
  bool has_news = false;
  for (const auto& host : remote_) {
    has_news |= host->has_news();
    if (host->has_news()) continue;
    if (is_late(connect_until_) && !host->facts()) host->abandon("it does not answer");
    if (is_late(kill_until_)) host->abandon("its ranks do not end");
    if (is_late(farewell_until_)) host->abandon("its connection does not end");
  }
  const bool has_ended =
      result_.has_started && local_.running() == 0 &&
      std::ranges::all_of(remote_, [](const auto& host) { return host->has_ended(); });
  if (has_ended && (has_news || !farewell_until_)) farewell_until_ = now + kFarewell;
}

}  // namespace unishard::tools
