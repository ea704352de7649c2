// One loop over one poll(): a signalfd for all signals, and the ranks' pipes when their output gets
// a prefix. There are no threads, because PR_SET_PDEATHSIG refers to the thread that forked.
#include "launch/launcher.hpp"

#include "unishard/format/error.hpp"

#include "launch/line_prefixer.hpp"
#include "launch/rank_environment.hpp"
#include "support/descriptor.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string_view>
#include <utility>

namespace unishard::tools {
namespace {

using Clock = std::chrono::steady_clock;

struct Stream {
  Descriptor pipe;
  LinePrefixer lines;
};

struct Rank {
  pid_t pid = 0;
  bool is_running = false;
  std::vector<Stream> streams;
};

sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, number);
  return set;
}

/// Blocks the signals that the loop reads; the destructor restores the old mask.
class BlockedSignals {
 public:
  BlockedSignals() {
    const sigset_t set = handled_signals();
    if (::pthread_sigmask(SIG_BLOCK, &set, &old_) != 0) raise_errno("blocking", "signals", errno);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &old_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t old_{};
};

/// Runs in the child between fork and exec; makes only calls that are safe there.
[[noreturn]] void become_rank(pid_t parent, char* const* argv, char* const* environment, int out,
                              int err) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it died before the line above
  // SIGHUP stays as it is: ignored under nohup.
  for (const int number : {SIGTERM, SIGINT, SIGPIPE, SIGCHLD, SIGXFSZ}) ::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // A background process group must not read the terminal: it would be stopped.
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  if (out >= 0) ::dup2(out, STDOUT_FILENO);
  if (err >= 0) ::dup2(err, STDERR_FILENO);
  ::execvpe(argv[0], argv, environment);
  const char* reason = ::strerror(errno);
  for (const char* text : {"unishard launch: error: cannot start ",
                           static_cast<const char*>(argv[0]), ": ", reason, "\n"}) {
    if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) break;
  }
  ::_exit(127);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options) : options_(options) {
    const sigset_t set = handled_signals();
    signals_ = Descriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (signals_.get() < 0) raise_errno("opening", "a signal descriptor", errno);
  }
  ~Launcher() {
    send_all(SIGKILL);
    while (running() > 0 && reap(0)) {
    }
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  std::optional<RankFailure> run() {
    const std::uint16_t port = options_.master_port != 0 ? options_.master_port : free_port();
    ranks_.resize(options_.ranks);
    for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) start(rank, port);
    while (running() > 0) {
      wait_for_event();
      while (reap(WNOHANG)) {
      }
      if (stop_at_ && Clock::now() >= *stop_at_) stop_others();
      if (kill_at_ && Clock::now() >= *kill_at_) {
        send_all(SIGKILL);
        kill_at_.reset();
      }
    }
    for (Rank& rank : ranks_) {
      for (Stream& stream : rank.streams) drain(stream);
    }
    if (!failure_ && lost_output_ != 0) {
      raise(ErrorCode::Io,
            fmt::format("output of the ranks could not be written: {}", ::strerror(lost_output_)),
            "the ranks ran to their end");
    }
    if (failure_) failure_->first_rank_exit = first_rank_exit_;
    return failure_;
  }

 private:
  void start(std::uint32_t rank, std::uint16_t port) {
    std::vector<std::string> arguments = options_.command;
    std::vector<std::string> variables = rank_environment({.rank = rank,
                                                           .world_size = options_.ranks,
                                                           .master_addr = options_.master_addr,
                                                           .master_port = port});
    const std::vector<char*> argv = pointers(arguments);
    const std::vector<char*> environment = pointers(variables);
    Descriptor out;
    Descriptor err;
    if (options_.prefix_output) {
      out = open_stream(rank, STDOUT_FILENO);
      err = open_stream(rank, STDERR_FILENO);
    }
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) raise_errno("starting", options_.command.front(), errno);
    if (pid == 0) become_rank(parent, argv.data(), environment.data(), out.get(), err.get());
    ::setpgid(pid, pid);  // in parent and child, because either may run first
    ranks_[rank].pid = pid;
    ranks_[rank].is_running = true;
  }

  Descriptor open_stream(std::uint32_t rank, int target) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) raise_errno("opening", "a pipe", errno);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    ranks_[rank].streams.push_back(
        {Descriptor(ends[0]), LinePrefixer(fmt::format("[rank {}] ", rank), target)});
    return Descriptor(ends[1]);
  }

  std::size_t running() const {
    return static_cast<std::size_t>(std::count_if(
        ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.is_running; }));
  }

  void send_all(int number) const {
    for (const Rank& rank : ranks_) {
      if (rank.is_running) ::kill(-rank.pid, number);
    }
  }

  /// Waits for a signal, output or the end of the grace period. The time limit covers a missed
  /// wake-up.
  void wait_for_event() {
    std::vector<pollfd> polled = {{signals_.get(), POLLIN, 0}};
    std::vector<Stream*> streams;
    for (Rank& rank : ranks_) {
      for (Stream& stream : rank.streams) {
        if (stream.pipe.get() < 0) continue;
        polled.push_back({stream.pipe.get(), POLLIN, 0});
        streams.push_back(&stream);
      }
    }
    int timeout_ms = 1000;
    for (const auto& next : {stop_at_, kill_at_}) {
      if (!next) continue;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now()).count();
      timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left, 0, timeout_ms));
    }
    if (::poll(polled.data(), polled.size(), timeout_ms) <= 0) return;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (polled[i + 1].revents != 0) drain(*streams[i]);
    }
    signalfd_siginfo received{};
    while (::read(signals_.get(), &received, sizeof received) == sizeof received) {
      if (received.ssi_signo != SIGCHLD) send_all(static_cast<int>(received.ssi_signo));
    }
  }

  /// Passes on the bytes in the pipe; does not wait for more.
  void drain(Stream& stream) {
    std::array<char, 65536> buffer;
    while (stream.pipe.get() >= 0) {
      const ssize_t count = ::read(stream.pipe.get(), buffer.data(), buffer.size());
      if (count > 0) {
        stream.lines.write({buffer.data(), static_cast<std::size_t>(count)});
      } else if (count == 0) {
        stream.pipe.close();
      } else if (errno != EINTR) {
        break;
      }
    }
    if (stream.pipe.get() < 0) stream.lines.finish();
    if (stream.lines.failure() != 0) warn_of_lost_output(stream.lines);
  }

  /// Reports once, on the other stream, that output is lost from now on.
  void warn_of_lost_output(const LinePrefixer& lines) {
    if (lost_output_ != 0) return;
    lost_output_ = lines.failure();
    const std::string text =
        fmt::format("unishard launch: warning: output of the ranks cannot be written: {}\n",
                    ::strerror(lost_output_));
    const int other = lines.descriptor() == STDOUT_FILENO ? STDERR_FILENO : STDOUT_FILENO;
    if (::write(other, text.data(), text.size()) < 0) return;  // the exit status reports it
  }

  /// Reaps one rank that has ended; returns false when there is none. Until it is reaped, its
  /// process group cannot be reused, so processes that it left there are killed first.
  bool reap(int flags) {
    siginfo_t ended{};
    int result = 0;
    do {
      result = ::waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT | flags);
    } while (result != 0 && errno == EINTR);
    if (result != 0 || ended.si_pid == 0) return false;
    const auto rank = std::find_if(ranks_.begin(), ranks_.end(),
                                   [&](const Rank& each) { return each.pid == ended.si_pid; });
    if (rank != ranks_.end()) ::kill(-ended.si_pid, SIGKILL);
    int status = 0;
    ::waitpid(ended.si_pid, &status, 0);
    if (rank == ranks_.end()) return true;
    rank->is_running = false;
    const RankFailure outcome{.rank = static_cast<std::uint32_t>(rank - ranks_.begin()),
                              .pid = ended.si_pid,
                              .exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0,
                              .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                              .first_rank_exit = {}};
    if (outcome.rank == 0 && outcome.signal == 0) first_rank_exit_ = outcome.exit_code;
    if (outcome.status() != 0) note_failure(outcome);
    return true;
  }

  void note_failure(const RankFailure& outcome) {
    const bool may_follow = may_be_a_consequence(outcome);
    if (!failure_) {
      failure_ = outcome;
      stop_at_ = may_follow ? Clock::now() + kReasonTime : Clock::now();
    } else if (stop_at_ && may_be_a_consequence(*failure_) && !may_follow) {
      failure_ = outcome;
    }
  }

  void stop_others() {
    send_all(SIGTERM);
    stop_at_.reset();
    kill_at_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                  std::chrono::duration<double>(options_.grace_seconds));
  }

  /// A rank that fails because another one does ends with status 3, and sometimes before it.
  static bool may_be_a_consequence(const RankFailure& outcome) {
    return outcome.signal == 0 && outcome.exit_code == 3;
  }
  /// How long a rank with the reason may take to end after the first, until the others are stopped.
  static constexpr std::chrono::milliseconds kReasonTime{300};

  const LaunchOptions& options_;
  Descriptor signals_;
  std::vector<Rank> ranks_;
  std::optional<RankFailure> failure_;
  std::optional<int> first_rank_exit_;
  std::optional<Clock::time_point> stop_at_, kill_at_;
  int lost_output_ = 0;  ///< error number of the first write that failed
};

/// Returns the name of a signal that ends processes. (sigabbrev_np() needs glibc 2.32.)
std::string_view signal_name(int signal) {
  constexpr auto kNames = std::to_array<std::pair<int, std::string_view>>({{SIGHUP, "SIGHUP"},
                                                                           {SIGINT, "SIGINT"},
                                                                           {SIGQUIT, "SIGQUIT"},
                                                                           {SIGILL, "SIGILL"},
                                                                           {SIGTRAP, "SIGTRAP"},
                                                                           {SIGABRT, "SIGABRT"},
                                                                           {SIGBUS, "SIGBUS"},
                                                                           {SIGFPE, "SIGFPE"},
                                                                           {SIGKILL, "SIGKILL"},
                                                                           {SIGUSR1, "SIGUSR1"},
                                                                           {SIGSEGV, "SIGSEGV"},
                                                                           {SIGUSR2, "SIGUSR2"},
                                                                           {SIGPIPE, "SIGPIPE"},
                                                                           {SIGALRM, "SIGALRM"},
                                                                           {SIGTERM, "SIGTERM"},
                                                                           {SIGXCPU, "SIGXCPU"},
                                                                           {SIGXFSZ, "SIGXFSZ"},
                                                                           {SIGSYS, "SIGSYS"}});
  const auto* const found =
      std::ranges::find(kNames, signal, &std::pair<int, std::string_view>::first);
  return found != kNames.end() ? found->second : "SIG?";
}

}  // namespace

std::string RankFailure::text() const {
  if (signal == 0)
    return fmt::format("rank {} (pid {}) exited with status {}", rank, pid, exit_code);
  return fmt::format("rank {} (pid {}) was killed by signal {} ({})", rank, pid, signal,
                     signal_name(signal));
}

std::uint16_t free_port() {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (socket.get() < 0 || ::bind(socket.get(), generic, size) != 0 ||
      ::getsockname(socket.get(), generic, &size) != 0) {
    raise_errno("looking for", "a free port", errno);
  }
  return ntohs(address.sin_port);
}

std::optional<RankFailure> launch(const LaunchOptions& options) {
  if (options.ranks == 0) raise(ErrorCode::InvalidArgument, "the number of ranks is 0");
  if (options.command.empty())
    raise(ErrorCode::InvalidArgument, "there is no program to start",
          "name it behind the options: unishard launch -n 2 -- PROGRAM [ARGUMENTS]");
  ::signal(SIGCHLD, SIG_DFL);  // where a parent ignores it, no rank could be waited for
  const BlockedSignals blocked;
  return Launcher(options).run();
}

}  // namespace unishard::tools
