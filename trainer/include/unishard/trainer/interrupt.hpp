#pragma once
// Lets a training loop stop between steps on SIGTERM, SIGINT or SIGHUP. A SIGINT (Ctrl-C) more than
// two seconds after the first signal ends the process at once, so that a run that hangs can be
// ended. SIGHUP stays ignored when it was ignored before, as under nohup.
namespace unishard::trainer {

/// One instance per process, because a signal handler reaches only static memory.
class Interrupt {
 public:
  /// Installs the handlers. The first signal writes `notice` to standard error at once; null writes
  /// nothing. Lifetime: `notice` must outlive the instance.
  explicit Interrupt(const char* notice = nullptr);
  /// Restores the previous handlers.
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  /// Returns true when this process received a signal.
  bool requested() const;
};

}  // namespace unishard::trainer
