#include "unishard/trainer/interrupt.hpp"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

namespace unishard::trainer {
namespace {

/// A launcher often sends a signal on that the terminal has sent to the ranks too. A later Ctrl-C
/// is meant. Systems that stop a job may repeat the other signals while it saves.
constexpr std::time_t kSameSignalSeconds = 2;

volatile std::sig_atomic_t was_asked = 0;
volatile std::time_t asked_at = 0;
const char* volatile notice_of_signal = nullptr;
struct sigaction former_term, former_int, former_hup;

std::time_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);  // safe in a signal handler
  return time.tv_sec;
}

/// Only what is safe in a signal handler. A notice that cannot be written is left out.
void write_notice() {
  const char* const notice = notice_of_signal;
  if (!notice) return;
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, notice, std::strlen(notice));
  errno = error;
}

void on_signal(int number) {
  if (was_asked == 0) {
    asked_at = now();
    was_asked = 1;
    write_notice();
  } else if (number == SIGINT && now() - asked_at > kSameSignalSeconds) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}

}  // namespace

Interrupt::Interrupt(const char* notice) {
  was_asked = 0;
  notice_of_signal = notice;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, &former_term);
  sigaction(SIGINT, &action, &former_int);
  sigaction(SIGHUP, &action, &former_hup);
  if (former_hup.sa_handler == SIG_IGN) sigaction(SIGHUP, &former_hup, nullptr);  // nohup
}

Interrupt::~Interrupt() {
  sigaction(SIGTERM, &former_term, nullptr);
  sigaction(SIGINT, &former_int, nullptr);
  sigaction(SIGHUP, &former_hup, nullptr);
}

bool Interrupt::requested() const { return was_asked != 0; }

}  // namespace unishard::trainer
