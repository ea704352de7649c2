#pragma once
// Lets a training loop stop between steps on SIGTERM, SIGINT or SIGHUP. A SIGINT (Ctrl-C) more than
// two seconds after the first signal ends the process at once, so that a run that hangs can be
// ended. SIGHUP stays ignored when it was ignored before, as under nohup.
#include "unishard/trainer/communicator.hpp"

namespace unishard::trainer {

/// One instance per process, because a signal handler reaches only static memory.
class Interrupt {
 public:
  /// Installs the handlers.
  Interrupt();
  /// Restores the previous handlers.
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  /// Returns true when this process received a signal.
  bool requested() const;
  /// Returns true when any rank received a signal. Collective.
  bool agreed(Communicator& communicator) const;
};

}  // namespace unishard::trainer
