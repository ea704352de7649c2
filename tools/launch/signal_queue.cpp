#include "launch/signal_queue.hpp"

#include "unishard/format/error.hpp"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace unishard::tools {

SignalQueue::SignalQueue() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, number);
  if (::pthread_sigmask(SIG_BLOCK, &set, &old_) != 0) raise_errno("blocking", "signals", errno);
  descriptor_ = Descriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (descriptor_.get() >= 0) return;
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &old_, nullptr);
  raise_errno("opening", "a signal descriptor", error);
}

SignalQueue::~SignalQueue() { ::pthread_sigmask(SIG_SETMASK, &old_, nullptr); }

std::vector<int> SignalQueue::take() {
  std::vector<int> found;
  signalfd_siginfo received{};
  while (::read(descriptor_.get(), &received, sizeof received) == sizeof received) {
    if (received.ssi_signo != SIGCHLD) found.push_back(static_cast<int>(received.ssi_signo));
  }
  return found;
}

std::optional<int> SignalQueue::wait(std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd polled{descriptor_.get(), POLLIN, 0};
    ::poll(&polled, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if (const std::vector<int> found = take(); !found.empty()) return found.front();
    if (left.count() <= 0) return std::nullopt;
  }
}

}  // namespace unishard::tools
