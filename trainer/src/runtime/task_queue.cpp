#include "runtime/task_queue.hpp"

#include <utility>

namespace unishard::trainer::detail {

TaskQueue::TaskQueue() : thread_([this] { work(); }) {}

TaskQueue::~TaskQueue() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void TaskQueue::push(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(task));
    ++pushed_;
  }
  changed_.notify_all();
}

std::uint64_t TaskQueue::pushed() const {
  const std::lock_guard lock(mutex_);
  return pushed_;
}

void TaskQueue::wait(std::uint64_t count) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= count; });
  if (error_) std::rethrow_exception(error_);
}

void TaskQueue::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closed_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    take_one(lock);
  }
}

void TaskQueue::take_one(std::unique_lock<std::mutex>& lock) {
  std::function<void()> task = std::exchange(waiting_.front(), nullptr);
  waiting_.pop_front();
  const bool skips = error_ != nullptr;
  lock.unlock();
  std::exception_ptr error;
  try {
    if (!skips) task();
  } catch (...) {
    error = std::current_exception();
  }
  task = nullptr;  // what it holds is freed before it counts as done
  lock.lock();
  if (error) error_ = error;
  ++done_;
  changed_.notify_all();
}

}  // namespace unishard::trainer::detail
