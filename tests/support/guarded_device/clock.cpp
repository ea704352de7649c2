#include "guarded_device/clock.hpp"

namespace unishard::test::guarded {
namespace {

bool covers(const Clock& clock, const Access& access) {
  if (access.ticket == 0) return true;
  const auto found = clock.find(access.stream);
  return found != clock.end() && found->second >= access.ticket;
}

}  // namespace

std::optional<Access> History::find_conflict(const Clock& clock, bool writes) const {
  if (!covers(clock, writer)) return writer;
  if (!writes) return std::nullopt;
  const auto found =
      std::ranges::find_if(readers, [&](const Access& each) { return !covers(clock, each); });
  return found == readers.end() ? std::nullopt : std::optional(*found);
}

void History::add(const Access& access, bool writes) {
  if (writes) {
    writer = access;
    readers.clear();
    return;
  }
  std::erase_if(readers, [&](const Access& each) { return each.stream == access.stream; });
  readers.push_back(access);
}

Clock History::users() const {
  Clock all{{writer.stream, writer.ticket}};
  for (const Access& each : readers) join(all, {{each.stream, each.ticket}});
  return all;
}

}  // namespace unishard::test::guarded
