#pragma once
// Work that is done later than it is given: operations in which other devices take part. Kernels
// are never late, so a kernel that is ordered after late work blocks its caller until that is done.
// Thread-safe.
#include "guarded_device/clock.hpp"

#include <functional>

namespace unishard::test::guarded {

/// A piece of work of a stream, by its place in the stream.
struct LateWork {
  StreamKey stream;
  std::uint64_t ticket = 0;
};

void begin_late(LateWork work);
void end_late(LateWork work);

/// Returns true when no late work is among what `event` stands for.
bool is_done(const Clock& event);
void wait_until_done(const Clock& event);
/// Calls `action` now, or in the end_late() after which is_done(event).
void when_done(Clock event, std::function<void()> action);

}  // namespace unishard::test::guarded
