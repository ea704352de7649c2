#pragma once
// The Work of communicators that finish an operation on the caller's thread.
#include "unishard/trainer/communicator.hpp"

#include <exception>
#include <functional>
#include <utility>

namespace unishard::trainer::detail {

/// Runs `finish` once, in wait() or in the destructor; an empty `finish` does nothing. Objects that
/// `finish` captured (buffers, handles) live until then.
class DeferredWork final : public Work {
 public:
  explicit DeferredWork(std::function<void()> finish) : finish_(std::move(finish)) {}
  ~DeferredWork() override {
    try {
      wait();
    } catch (const std::exception&) {  // the next operation of the group reports the failure
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
