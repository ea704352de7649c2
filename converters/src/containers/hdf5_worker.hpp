#pragma once
// Runs libhdf5 on foreign files in a child process, because libhdf5 crashes on forged and on some
// damaged files. The child can die without harm.
#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <mutex>
#include <string>

namespace unishard::converters::hdf5 {

/// A forked process that answers one request after another and is killed by the destructor.
/// Construct it before other threads run: an allocator that another thread has locked during the
/// fork stays locked in the child.
class Hdf5Worker {
 public:
  /// Answers a request; runs in the child only.
  using Work = std::function<std::string(const std::string& request)>;

  /// `what` is the file that messages name.
  /// Pre: `work` does not take the Hdf5Lock, which the child already holds.
  Hdf5Worker(std::string what, const Work& work);
  ~Hdf5Worker();
  Hdf5Worker(const Hdf5Worker&) = delete;
  Hdf5Worker& operator=(const Hdf5Worker&) = delete;

  /// Returns what `work` returns for `request`. Thread-safe.
  /// Throws: the Error that `work` threw; Corrupt, naming the file, when the child died or used 5
  /// minutes of processor time for one request, and from then on for every request.
  std::string ask(const std::string& request);

 private:
  [[noreturn]] void raise_dead();

  const std::string what_;
  std::mutex mutex_;
  int socket_ = -1;
  pid_t child_ = -1;
};

}  // namespace unishard::converters::hdf5
