#pragma once
// Turns SIGTERM, SIGINT and SIGHUP (unless it is ignored, as nohup does) into a question that the
// training loop asks between steps. A signal handler can reach only static memory: this is the one
// exception to the rule against it. One instance per process.
#include "unishard/trainer/communicator.hpp"

namespace unishard::trainer {

class Interrupt {
 public:
  Interrupt();   ///< installs the handlers
  ~Interrupt();  ///< restores the former ones
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  /// Collective: whether any rank was asked to stop.
  bool agreed(Communicator& communicator) const;
};

}  // namespace unishard::trainer
