#pragma once
// The outcome of a save: written once by the thread that ran it, read by handles and by the next
// save.
#include "unishard/trainer/save_handle.hpp"

#include <atomic>
#include <exception>
#include <future>

namespace unishard::trainer::detail {

/// Thread-safe; succeed() or fail() is called once.
class SaveOutcome {
 public:
  void succeed(SaveReport report) { promise_.set_value(std::move(report)); }
  void fail(std::exception_ptr error) {
    failed_ = true;
    promise_.set_exception(std::move(error));
  }

  bool finished() const {
    return report_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  bool durable() const { return finished() && !failed_; }
  /// Throws: what failed.
  const SaveReport& wait() {
    report_.wait();
    waited_ = true;
    return report_.get();
  }
  /// Returns true when the save is over and has failed.
  bool failed() const { return finished() && failed_; }
  /// Returns true when wait() has reported the outcome to a caller.
  bool waited() const { return waited_; }

 private:
  std::promise<SaveReport> promise_;
  std::shared_future<SaveReport> report_ = promise_.get_future();
  std::atomic<bool> failed_{false};
  std::atomic<bool> waited_{false};
};

}  // namespace unishard::trainer::detail
