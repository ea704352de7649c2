#pragma once
// The Work of every communicator that finishes on the caller's thread.
#include "unishard/trainer/communicator.hpp"

#include <exception>
#include <functional>
#include <utility>

namespace unishard::trainer::detail {

/// Runs `finish` once, in wait() or at the end of its life; empty: there is nothing to finish. What
/// `finish` holds (buffers, handles) lives until then.
class DeferredWork final : public Work {
 public:
  explicit DeferredWork(std::function<void()> finish) : finish_(std::move(finish)) {}
  ~DeferredWork() override {
    try {
      wait();
    } catch (const std::exception&) {  // nobody is left to tell; the group's next operation fails
    }
  }
  DeferredWork(const DeferredWork&) = delete;
  DeferredWork& operator=(const DeferredWork&) = delete;

  void wait() override {
    if (const auto finish = std::exchange(finish_, nullptr)) finish();
  }

 private:
  std::function<void()> finish_;
};

}  // namespace unishard::trainer::detail
