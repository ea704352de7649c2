#pragma once
// A thread that does what it is given, in order.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace unishard::trainer::detail {

/// Thread-safe. The destructor waits until everything is done.
class TaskQueue {
 public:
  TaskQueue();
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  /// Appends a task. Tasks after one that threw are not run.
  void push(std::function<void()> task);
  /// Returns the number of tasks that were pushed.
  std::uint64_t pushed() const;
  /// Blocks until the first `count` tasks are done or skipped.
  /// Throws: what the first task to fail has thrown.
  void wait(std::uint64_t count) const;

 private:
  void work();
  void take_one(std::unique_lock<std::mutex>& lock);

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::uint64_t pushed_ = 0, done_ = 0;
  std::exception_ptr error_;
  bool closed_ = false;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace unishard::trainer::detail
