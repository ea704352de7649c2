#pragma once
// Vector clocks: which work on streams is known to be done before which other work.
#include <c10/core/Stream.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unishard::test::guarded {

/// A stream of one of the devices.
using StreamKey = std::pair<c10::DeviceIndex, c10::StreamId>;
/// The newest piece of work of each stream that is known to be done.
using Clock = std::map<StreamKey, std::uint64_t>;

inline void join(Clock& into, const Clock& other) {
  for (const auto& [stream, ticket] : other) into[stream] = std::max(into[stream], ticket);
}

/// A piece of work that used memory. Ticket 0 stands for none.
struct Access {
  StreamKey stream;
  std::uint64_t ticket = 0;
  std::string what = {};
};

/// Those who used a block of memory last.
struct History {
  Access writer;
  std::vector<Access> readers = {};  ///< since the writer, one for each stream

  /// Returns an earlier access that `clock` does not order before a new one and that conflicts with
  /// it.
  std::optional<Access> find_conflict(const Clock& clock, bool writes) const;
  void add(const Access& access, bool writes);
  /// Returns what a wait for all of them must join.
  Clock users() const;
};

}  // namespace unishard::test::guarded
