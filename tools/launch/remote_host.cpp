#include "launch/remote_host.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/version.hpp"

#include "launch/child_process.hpp"
#include "team/packed_texts.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

namespace unishard::tools {
namespace {

constexpr std::size_t kErrorsMax = 2000;  ///< bytes of error output that are kept for a message
constexpr std::string_view kAgentMessage = "a message of an agent";

/// Both ends of a pipe: for reading, for writing.
std::pair<Descriptor, Descriptor> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) raise_errno("opening", "a pipe", errno);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::vector<std::string> own_environment() {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) all.emplace_back(*entry);
  return all;
}

std::string last_line(std::string_view text) {
  while (text.ends_with('\n') || text.ends_with('\r')) text.remove_suffix(1);
  const std::size_t newline = text.rfind('\n');
  return std::string(newline == std::string_view::npos ? text : text.substr(newline + 1));
}

}  // namespace

RemoteHost::RemoteHost(std::string name, std::vector<std::string> connect,
                       LocalRanks::OnOutput on_output, OnEnd on_end)
    : name_(std::move(name)),
      on_output_(std::move(on_output)),
      on_end_(std::move(on_end)),
      error_lines_(name_ + ": ", STDERR_FILENO) {
  auto [in, to_agent] = make_pipe();
  auto [from_agent, out] = make_pipe();
  auto [errors, err] = make_pipe();
  pid_ = start_child({.command = std::move(connect),
                      .environment = own_environment(),
                      .in = in.get(),
                      .out = out.get(),
                      .err = err.get()});
  to_agent_.emplace(std::move(to_agent));
  from_agent_ = std::move(from_agent);
  errors_ = std::move(errors);
  for (const int each : {from_agent_.get(), errors_.get()}) ::fcntl(each, F_SETFL, O_NONBLOCK);
}

RemoteHost::~RemoteHost() {
  if (is_over_) return;
  ::kill(-pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void RemoteHost::push(const Message& message) {
  const std::lock_guard lock(mutex_);
  to_agent_->push(encode(message));
}

void RemoteHost::beat() {
  const std::lock_guard lock(mutex_);
  if (to_agent_->size() == 0) to_agent_->push(encode({.kind = "alive", .payload = ""}));
}

void RemoteHost::start(const HostJob& job) {
  is_started_ = true;
  first_rank_ = job.first_rank;
  ranks_ = outstanding_ = job.ranks;
  push({.kind = "job", .payload = pack_job(job)});
}

void RemoteHost::send(int number) { push({.kind = "signal", .payload = std::to_string(number)}); }

void RemoteHost::abandon(std::string reason) {
  if (is_over_) return;
  if (reason_.empty()) reason_ = std::move(reason);
  ::kill(-pid_, SIGKILL);
}

void RemoteHost::add_to(PollSet& polled) {
  if (from_agent_.get() >= 0) polled.add(from_agent_.get(), POLLIN, [this] { receive(); });
  if (errors_.get() >= 0) polled.add(errors_.get(), POLLIN, [this] { receive_errors(); });
  const std::lock_guard lock(mutex_);
  if (to_agent_->size() == 0) return;
  polled.add(to_agent_->descriptor(), POLLOUT, [this] {
    const std::lock_guard inner(mutex_);
    to_agent_->flush();
  });
}

void RemoteHost::receive() {
  std::array<char, 65536> buffer;
  const ssize_t count = ::read(from_agent_.get(), buffer.data(), buffer.size());
  if (count < 0) return;
  if (count == 0) return from_agent_.close();
  try {
    reader_.feed({buffer.data(), static_cast<std::size_t>(count)});
    if (!reader_.skip_to_mark()) return;
    while (const auto message = reader_.next()) obey(*message);
  } catch (const Error& error) {
    abandon(error.what());
    from_agent_.close();
  }
}

void RemoteHost::receive_errors() {
  std::array<char, 4096> buffer;
  const ssize_t count = ::read(errors_.get(), buffer.data(), buffer.size());
  if (count < 0) return;
  if (count == 0) return errors_.close();
  const std::string_view text(buffer.data(), static_cast<std::size_t>(count));
  error_lines_.write(text);
  last_errors_ += text;
  if (last_errors_.size() > kErrorsMax) last_errors_.erase(0, last_errors_.size() - kErrorsMax);
}

void RemoteHost::take_facts(const std::string& payload) {
  const std::vector<std::string> fields = unpack(payload, 6, kAgentMessage);
  if (fields[0] != kLibraryVersion) {
    return abandon(
        fmt::format("it has UniShard {}, and this is {}", quote(fields[0]), kLibraryVersion));
  }
  HostFacts facts{.free_port = static_cast<std::uint16_t>(message_number(fields[1])),
                  .ssh_address = fields[2],
                  .interfaces = {}};
  const std::uint32_t count = message_number(fields[3]);
  const std::vector<std::string> names = unpack(fields[4], count, kAgentMessage);
  const std::vector<std::string> addresses = unpack(fields[5], count, kAgentMessage);
  for (std::uint32_t i = 0; i < count; ++i) facts.interfaces.emplace_back(names[i], addresses[i]);
  facts_ = std::move(facts);
}

/// Returns the number of a rank that this host runs.
/// Throws: Corrupt when it does not.
std::uint32_t RemoteHost::rank_of(std::string_view text) const {
  const std::uint32_t rank = message_number(text);
  if (rank < first_rank_ || rank - first_rank_ >= ranks_)
    raise(ErrorCode::Corrupt, fmt::format("{}: rank {} does not run there", kAgentMessage, rank));
  return rank;
}

void RemoteHost::obey(const Message& message) {
  if (message.kind == "hello") {
    take_facts(message.payload);
  } else if (message.kind == "output") {
    const std::vector<std::string> fields = unpack(message.payload, 3, kAgentMessage);
    on_output_(rank_of(fields[0]), fields[1] == "2" ? STDERR_FILENO : STDOUT_FILENO, fields[2]);
  } else if (message.kind == "ended") {
    const std::vector<std::string> fields = unpack(message.payload, 4, kAgentMessage);
    outstanding_ -= std::min(outstanding_, 1u);
    on_end_({.rank = rank_of(fields[0]),
             .pid = static_cast<pid_t>(message_number(fields[1])),
             .exit_code = static_cast<int>(message_number(fields[2])),
             .signal = static_cast<int>(message_number(fields[3])),
             .host = name_});
  } else if (message.kind == "failed" && reason_.empty()) {
    reason_ = message.payload;
  }
}

bool RemoteHost::has_news() const {
  pollfd polled{from_agent_.get(), POLLIN, 0};
  return from_agent_.get() >= 0 && ::poll(&polled, 1, 0) > 0;
}

void RemoteHost::reap() {
  if (is_over_) return;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return;
  while (has_news()) receive();
  receive_errors();
  error_lines_.finish();
  is_over_ = true;
  if (!reason_.empty()) return;
  const std::string how = WIFSIGNALED(status)
                              ? fmt::format("ssh was killed by signal {}", WTERMSIG(status))
                              : fmt::format("ssh exited with status {}", WEXITSTATUS(status));
  const std::string why = last_line(last_errors_);
  reason_ = fmt::format("{} ({}{}{})", facts_ ? "the connection was lost" : "it cannot be reached",
                        how, why.empty() ? "" : ": ", why.empty() ? "" : quote(why));
}

std::optional<std::string> RemoteHost::lost() const {
  if (!is_over_ || has_ended()) return std::nullopt;
  return reason_;
}

}  // namespace unishard::tools
