#include "thread_group.hpp"

#include "unishard/format/error.hpp"
#include "unishard/trainer/fold.hpp"

#include <atomic>
#include <barrier>
#include <cstring>
#include <exception>
#include <memory>
#include <thread>

namespace unishard::test {
namespace {

using trainer::Communicator;
using trainer::WorkPtr;

struct Shared {
  explicit Shared(std::uint32_t size) : barrier(static_cast<std::ptrdiff_t>(size)), posted(size) {}

  /// The others no longer wait for the caller, here and in the duplicates.
  void leave() {
    is_broken = true;
    barrier.arrive_and_drop();
    const std::lock_guard lock(mutex);
    for (const auto& each : duplicates) each->leave();
  }

  std::barrier<> barrier;
  std::atomic<bool> is_broken = false;
  std::vector<std::span<const std::byte>> posted;
  std::mutex mutex;
  std::vector<std::shared_ptr<Shared>> duplicates = {};  ///< protected by the mutex
};

class Done final : public trainer::Work {
 public:
  void wait() override {}
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::uint32_t rank, std::shared_ptr<Shared> shared)
      : rank_(rank), shared_(std::move(shared)) {}
  std::uint32_t rank() const override { return rank_; }
  std::uint32_t size() const override { return static_cast<std::uint32_t>(shared_->posted.size()); }
  void barrier() override { shared_->barrier.arrive_and_wait(); }
  std::unique_ptr<Communicator> duplicate() override {
    const auto mine = std::make_shared<Shared>(size());
    if (rank_ == 0) {
      const std::lock_guard lock(shared_->mutex);
      shared_->duplicates.push_back(mine);
    }
    std::shared_ptr<Shared> first;
    exchange(std::as_bytes(std::span(&mine, 1)),
             [&](std::size_t rank, std::span<const std::byte> theirs) {
               if (rank != 0) return;
               first = *reinterpret_cast<const std::shared_ptr<Shared>*>(theirs.data());
             });
    return std::make_unique<ThreadCommunicator>(rank_, first);
  }

  WorkPtr all_gather(std::span<std::byte> out, std::span<const std::byte> in) override {
    exchange(in, [&](std::size_t rank, std::span<const std::byte> theirs) {
      std::byte* target = out.data() + rank * in.size();
      if (!theirs.empty() && target != theirs.data())
        std::memcpy(target, theirs.data(), theirs.size());
    });
    return std::make_unique<Done>();
  }
  WorkPtr reduce_scatter_fold(std::span<float> accumulator, DType dtype,
                              std::span<const std::byte> in) override {
    const std::size_t slice = accumulator.size() * size_of(dtype);
    exchange(in, [&](std::size_t, std::span<const std::byte> theirs) {
      trainer::fold_add(accumulator, dtype, theirs.subspan(rank_ * slice, slice));
    });
    return std::make_unique<Done>();
  }
  WorkPtr broadcast(std::span<std::byte> bytes, std::uint32_t root) override {
    exchange(bytes, [&](std::size_t rank, std::span<const std::byte> theirs) {
      if (rank == root && rank != rank_) std::memcpy(bytes.data(), theirs.data(), theirs.size());
    });
    return std::make_unique<Done>();
  }

 private:
  template <class Take>
  void exchange(std::span<const std::byte> mine, const Take& take) {
    shared_->posted[rank_] = mine;
    barrier();
    if (shared_->is_broken) raise(ErrorCode::PeerFailed, "another thread of the group has failed");
    for (std::size_t rank = 0; rank < shared_->posted.size(); ++rank)
      take(rank, shared_->posted[rank]);
    barrier();
  }

  std::uint32_t rank_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace

std::mutex& construction_mutex() {
  static std::mutex mutex;
  return mutex;
}

void run_threads(std::uint32_t size, const std::function<void(Communicator&)>& body) {
  const auto shared = std::make_shared<Shared>(size);
  std::exception_ptr first;
  std::once_flag failed;
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        ThreadCommunicator communicator(rank, shared);
        try {
          body(communicator);
        } catch (...) {
          std::call_once(failed, [&] { first = std::current_exception(); });
          shared->leave();
        }
      });
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace unishard::test
