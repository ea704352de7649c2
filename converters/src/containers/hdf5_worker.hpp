#pragma once
// libhdf5 crashes on forged files and on some damaged ones. What it does with a file of anybody's
// it therefore does in a process of its own, which can die without harm.
#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <mutex>
#include <string>

namespace unishard::converters::hdf5 {

/// A forked process that answers one request after another, and ends with this object. It is
/// started once per file, so that a program forks before its threads are at work (an allocator that
/// is locked by a thread at that moment would stay locked in the child).
class Hdf5Worker {
 public:
  using Work = std::function<std::string(const std::string& request)>;

  /// `work` is called in the child only, and must not take Hdf5Lock. `what` names the file.
  Hdf5Worker(std::string what, const Work& work);
  ~Hdf5Worker();
  Hdf5Worker(const Hdf5Worker&) = delete;
  Hdf5Worker& operator=(const Hdf5Worker&) = delete;

  /// What `work` returned. Throws the Error that it threw, and Corrupt naming the file when the
  /// process died or used 5 minutes of processor time for one request; then for every later
  /// request, too. Thread-safe.
  std::string ask(const std::string& request);

 private:
  [[noreturn]] void raise_dead();

  const std::string what_;
  std::mutex mutex_;
  int socket_ = -1;
  pid_t child_ = -1;
};

}  // namespace unishard::converters::hdf5
