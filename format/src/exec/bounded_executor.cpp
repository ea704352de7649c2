#include "unishard/format/bounded_executor.hpp"

#include "unishard/format/huge_buffer.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace unishard {
namespace {

class NoObserver final : public Observer {
 public:
  void advance(std::uint64_t) override {}
  void begin(std::string_view, std::uint64_t) override {}
  void end() override {}
};

/// The observer of the work that this thread does.
thread_local Observer* current_observer = nullptr;

class Working {
 public:
  explicit Working(Observer* observer) : before_(std::exchange(current_observer, observer)) {}
  ~Working() { current_observer = before_; }
  Working(const Working&) = delete;
  Working& operator=(const Working&) = delete;

 private:
  Observer* const before_;
};

}  // namespace

void check_stop_request() {
  if (current_observer != nullptr) current_observer->advance(0);
}

Observer& no_observer() {
  static NoObserver observer;
  return observer;
}

TransferOptions TransferOptions::within(std::uint64_t memory_bytes, unsigned threads) {
  constexpr std::uint64_t kSmallest = std::uint64_t{64} << 10, kLargest = std::uint64_t{8} << 20;
  TransferOptions options;
  options.threads = std::max(1u, threads);
  options.buffer_bytes =
      std::clamp(memory_bytes / 8 / options.threads, kSmallest, kLargest) / kSmallest * kSmallest;
  return options;
}

std::vector<Fragment> cut_fragments(const Catalog& catalog, std::span<const Fragment> fragments,
                                    std::uint64_t buffer_bytes, const Boundary& boundary) {
  std::vector<Fragment> cut;
  for (const Fragment& fragment : fragments) {
    const auto& [tensor, range, box] = fragment;
    const std::uint64_t step =
        std::max<std::uint64_t>(1, buffer_bytes / size_of(catalog.tensors[tensor].dtype));
    for (std::uint64_t at = range.begin; at < range.end;) {
      std::uint64_t end = range.end;
      if (range.end - at > step) {
        end = at + step;
        const std::uint64_t good = boundary ? boundary(tensor, end) : end;
        if (good > at + step / 2) end = good;
      }
      cut.push_back({tensor, {at, end}});
      at = end;
    }
  }
  return cut;
}

void run_bounded(std::size_t count, const TransferOptions& options,
                 const std::function<std::uint64_t(std::size_t, std::span<std::byte>)>& work) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto run = [&] {
    try {
      const Working working(options.observer);
      const HugeBuffer buffer(options.buffer_bytes);
      while (!stop) {
        const std::size_t index = next.fetch_add(1);
        if (index >= count) return;
        options.advance(work(index, buffer.bytes()));
      }
    } catch (...) {
      const std::scoped_lock lock(mutex);
      if (!failure) failure = std::current_exception();
      stop = true;
    }
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (unsigned i = 1; i < std::min<std::size_t>(options.threads, count); ++i)
        threads.emplace_back(run);
    } catch (const std::system_error&) {
      // The limit on processes (ulimit -u) is reached: the threads that started do the work.
    }
    run();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace unishard
