// One loop over one poll(): the launcher's messages, the signals, the pipes of the ranks, and the
// connection when it can take more of their output.
#include "launch/agent.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/version.hpp"

#include "launch/byte_queue.hpp"
#include "launch/host_addresses.hpp"
#include "launch/local_ranks.hpp"
#include "launch/message.hpp"
#include "launch/signal_queue.hpp"
#include "team/packed_texts.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string>

namespace unishard::tools {
namespace {

using Clock = std::chrono::steady_clock;

/// Output that waits for the connection; beyond it, the ranks wait.
constexpr std::size_t kWaitingMax = std::size_t{1} << 20;

class Agent {
 public:
  explicit Agent(double host_timeout)
      : silence_max_(std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double>(host_timeout / 2))),
        to_launcher_(Descriptor(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0))),
        ranks_([this](std::uint32_t rank, int stream, std::string_view bytes) {
          send("output", pack({std::to_string(rank), std::to_string(stream), std::string(bytes)}));
        }) {
    ::fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
  }

  int run() {
    say_hello();
    while (!is_lost_ && (!is_done_ || to_launcher_.size() > 0)) step();
    if (is_lost_) return exit_status(ErrorCode::PeerFailed);  // the destructor kills the ranks
    return 0;
  }

 private:
  void send(std::string kind, std::string payload) {
    to_launcher_.push(encode({.kind = std::move(kind), .payload = std::move(payload)}));
  }

  void say_hello() {
    std::vector<std::string> names, addresses;
    for (const auto& [name, address] : interface_addresses()) {
      names.push_back(name);
      addresses.push_back(address);
    }
    const char* const connection = std::getenv("SSH_CONNECTION");
    to_launcher_.push(kAgentMark);
    send("hello", pack({std::string(kLibraryVersion), std::to_string(free_port()),
                        ssh_address(connection != nullptr ? connection : ""),
                        std::to_string(names.size()), pack(names), pack(addresses)}));
  }

  void step() {
    PollSet polled;
    polled.add(signals_.descriptor(), POLLIN, [this] {
      for (const int number : signals_.take()) ranks_.send(number);
    });
    polled.add(STDIN_FILENO, POLLIN, [this] { receive(); });
    const bool is_full = to_launcher_.size() > kWaitingMax;
    if (to_launcher_.size() > 0)
      polled.add(to_launcher_.descriptor(), POLLOUT, [this] { to_launcher_.flush(); });
    if (!is_full) ranks_.add_to(polled);
    polled.wait(std::chrono::milliseconds(500));
    is_lost_ |= to_launcher_.has_failed() || Clock::now() - last_heard_ > silence_max_;
    ranks_.reap([this](const RankFailure& outcome) {
      send("ended", pack({std::to_string(outcome.rank), std::to_string(outcome.pid),
                          std::to_string(outcome.exit_code), std::to_string(outcome.signal)}));
    });
    if (has_job_ && !is_done_ && ranks_.running() == 0) finish();
  }

  void finish() {
    ranks_.finish_output();
    is_done_ = true;
  }

  void receive() {
    std::array<char, 65536> buffer;
    const ssize_t count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) {
      is_lost_ = true;
      return;
    }
    last_heard_ = Clock::now();
    reader_.feed({buffer.data(), static_cast<std::size_t>(count)});
    while (const auto message = reader_.next()) obey(*message);
  }

  void obey(const Message& message) {
    if (message.kind == "signal")
      ranks_.send(static_cast<int>(message_number(message.payload)));
    else if (message.kind == "job" && !has_job_)
      start(message.payload);
  }

  void start(std::string_view job) {
    has_job_ = true;
    try {
      ranks_.start(unpack_job(job));
    } catch (const Error& error) {
      send("failed", error.what());
      ranks_.send(SIGKILL);
    }
  }

  Clock::duration silence_max_;
  SignalQueue signals_;
  ByteQueue to_launcher_;
  LocalRanks ranks_;
  MessageReader reader_;
  Clock::time_point last_heard_ = Clock::now();
  bool has_job_ = false, is_done_ = false, is_lost_ = false;
};

}  // namespace

int run_agent(double host_timeout) {
  ::signal(SIGCHLD, SIG_DFL);
  return Agent(host_timeout).run();
}

}  // namespace unishard::tools
