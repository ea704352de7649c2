#include "unishard/trainer/interrupt.hpp"

#include <csignal>

namespace unishard::trainer {
namespace {

volatile std::sig_atomic_t requested = 0;
struct sigaction former_term, former_int, former_hup;

void on_signal(int) { requested = 1; }

}  // namespace

Interrupt::Interrupt() {
  requested = 0;
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

bool Interrupt::agreed(Communicator& communicator) const {
  return agree_max(communicator, requested) != 0;
}

}  // namespace unishard::trainer
