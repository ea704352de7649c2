#include "guarded_device/streams.hpp"

#include <c10/util/Exception.h>

#include <array>
#include <cstdint>
#include <mutex>

namespace unishard::test::guarded {
namespace {

/// Never destroyed: tensors outlive main().
struct State {
  std::mutex mutex;
  std::map<StreamKey, Clock> clocks;  ///< what is ordered before the next work of each stream
  Clock host;                         ///< what the host has waited for
  std::uint64_t host_waits = 0;
  CopiedBytes copied;
  std::map<std::string, std::uint64_t> work, bytes;
  c10::StreamId streams = 0;
  std::vector<std::string> violations;
};

State& state() {
  static auto* const only = new State;
  return *only;
}

thread_local c10::DeviceIndex this_device = 0;
thread_local std::array<c10::StreamId, kDevices> this_stream{};

/// Pre: the mutex is held.
std::uint64_t next_ticket(StreamKey stream) {
  Clock& clock = state().clocks[stream];
  join(clock, state().host);
  return ++clock[stream];
}

std::string name_of(StreamKey stream) {
  return "stream " + std::to_string(stream.second) + " of device " + std::to_string(stream.first);
}

/// Returns what is ordered before the next work of the stream.
Clock clock_of(StreamKey stream) {
  const std::lock_guard lock(state().mutex);
  return state().clocks[stream];
}

/// Returns the place of the work in the stream.
/// Throws: as begin_work() does.
std::uint64_t append(StreamKey stream, const std::string& what, const Uses& uses) {
  const std::lock_guard lock(state().mutex);
  const Access access{stream, next_ticket(stream), what};
  ++state().work[what];
  for (const auto& [block, writes] : uses) {
    const auto conflict = block->history.find_conflict(state().clocks[stream], writes);
    TORCH_CHECK(!conflict, "guarded: RACE: ", what, " on ", name_of(stream),
                writes ? " writes to " : " reads ", block->describe(), ", which ", conflict->what,
                " uses on ", name_of(conflict->stream), ", and no event orders them");
    block->history.add(access, writes);
  }
  return access.ticket;
}

}  // namespace

c10::DeviceIndex current_device() { return this_device; }

c10::DeviceIndex exchange_device(c10::DeviceIndex device) noexcept {
  return std::exchange(this_device, device);
}

StreamKey current_stream(c10::DeviceIndex device) noexcept {
  return {device, this_stream[static_cast<std::size_t>(device)]};
}

void set_current_stream(StreamKey stream) noexcept {
  this_stream[static_cast<std::size_t>(stream.first)] = stream.second;
}

StreamKey new_stream(c10::DeviceIndex device) {
  const std::lock_guard lock(state().mutex);
  return {device, ++state().streams};
}

void* handle_of(StreamKey stream) {
  const auto device = static_cast<std::uintptr_t>(stream.first) + 1;
  return reinterpret_cast<void*>(device << 32 | static_cast<std::uintptr_t>(stream.second));
}

StreamKey stream_of(const void* handle) {
  const auto bits = reinterpret_cast<std::uintptr_t>(handle);
  return {static_cast<c10::DeviceIndex>((bits >> 32) - 1),
          static_cast<c10::StreamId>(bits & 0xffffffff)};
}

void begin_work(StreamKey stream, const std::string& what, const Uses& uses) {
  wait_until_done(clock_of(stream));
  append(stream, what, uses);
}

LateWork begin_late_work(StreamKey stream, const std::string& what, const Uses& uses) {
  const LateWork work{stream, append(stream, what, uses)};
  begin_late(work);
  return work;
}

Clock record(StreamKey stream) {
  const std::lock_guard lock(state().mutex);
  next_ticket(stream);
  return state().clocks[stream];
}

void make_wait(StreamKey stream, const Clock& event) {
  const std::lock_guard lock(state().mutex);
  join(state().clocks[stream], event);
}

void host_waited(const Clock& event) {
  host_copied(event);
  const std::lock_guard lock(state().mutex);
  ++state().host_waits;
}

std::uint64_t host_waits() {
  const std::lock_guard lock(state().mutex);
  return state().host_waits;
}

std::map<std::string, std::uint64_t> work_counts() {
  const std::lock_guard lock(state().mutex);
  return state().work;
}

std::map<std::string, std::uint64_t> work_bytes() {
  const std::lock_guard lock(state().mutex);
  return state().bytes;
}

void count_bytes(const std::string& what, std::uint64_t bytes) {
  const std::lock_guard lock(state().mutex);
  state().bytes[what] += bytes;
}

CopiedBytes copied_bytes() {
  const std::lock_guard lock(state().mutex);
  return state().copied;
}

void count_copy(bool to_host, bool behind, std::uint64_t bytes) {
  const std::lock_guard lock(state().mutex);
  CopiedBytes& copied = state().copied;
  if (to_host) {
    (behind ? copied.to_host_behind : copied.to_host) += bytes;
  } else {
    (behind ? copied.to_device_behind : copied.to_device) += bytes;
  }
}

void host_copied(const Clock& event) {
  wait_until_done(event);
  const std::lock_guard lock(state().mutex);
  join(state().host, event);
}

void begin_life(Block* block) {
  const std::lock_guard lock(state().mutex);
  block->recorded.clear();
  block->history = {.writer = {block->home, next_ticket(block->home), "the allocation"}};
}

Clock end_life(Block* block) {
  const std::lock_guard lock(state().mutex);
  const Clock users = block->history.users();
  Clock home = state().clocks[block->home];
  join(home, state().host);
  const auto conflict = block->history.find_conflict(home, /*writes=*/true);
  if (!conflict || block->recorded.contains(conflict->stream)) return users;
  state().violations.push_back("guarded: " + block->describe() + " is freed on " +
                               name_of(block->home) + " while " + conflict->what + " on " +
                               name_of(conflict->stream) + " may still use it");
  return users;
}

void record_use(Block* block, StreamKey stream) {
  const std::lock_guard lock(state().mutex);
  block->recorded.insert(stream);
}

std::vector<std::string> take_violations() {
  const std::lock_guard lock(state().mutex);
  return std::exchange(state().violations, {});
}

}  // namespace unishard::test::guarded
