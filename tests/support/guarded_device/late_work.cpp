#include "guarded_device/late_work.hpp"

#include <condition_variable>
#include <mutex>

namespace unishard::test::guarded {
namespace {

struct Waiting {
  Clock event;
  std::function<void()> action;
};

/// Never destroyed: tensors outlive main().
struct LateState {
  std::mutex mutex;
  std::condition_variable ended;
  std::vector<LateWork> late;
  std::vector<Waiting> waiting;
};

LateState& late_state() {
  static auto* const only = new LateState;
  return *only;
}

/// Pre: the mutex is held.
bool is_done_now(const Clock& event) {
  return std::ranges::none_of(late_state().late, [&](const LateWork& each) {
    const auto found = event.find(each.stream);
    return found != event.end() && found->second >= each.ticket;
  });
}

/// Pre: the mutex is held.
std::vector<Waiting> take_those_done() {
  auto& waiting = late_state().waiting;
  const auto split = std::ranges::stable_partition(
      waiting, [](const Waiting& each) { return !is_done_now(each.event); });
  std::vector<Waiting> done(std::make_move_iterator(split.begin()),
                            std::make_move_iterator(split.end()));
  waiting.erase(split.begin(), split.end());
  return done;
}

}  // namespace

void begin_late(LateWork work) {
  const std::lock_guard lock(late_state().mutex);
  late_state().late.push_back(work);
}

void end_late(LateWork work) {
  std::vector<Waiting> done;
  {
    const std::lock_guard lock(late_state().mutex);
    std::erase_if(late_state().late, [&](const LateWork& each) {
      return each.stream == work.stream && each.ticket == work.ticket;
    });
    done = take_those_done();
  }
  late_state().ended.notify_all();
  for (const Waiting& each : done) each.action();
}

bool is_done(const Clock& event) {
  const std::lock_guard lock(late_state().mutex);
  return is_done_now(event);
}

void wait_until_done(const Clock& event) {
  std::unique_lock lock(late_state().mutex);
  late_state().ended.wait(lock, [&] { return is_done_now(event); });
}

void when_done(Clock event, std::function<void()> action) {
  {
    const std::lock_guard lock(late_state().mutex);
    if (!is_done_now(event)) {
      late_state().waiting.push_back({std::move(event), std::move(action)});
      return;
    }
  }
  action();
}

}  // namespace unishard::test::guarded
