#include "unishard/trainer/trace.hpp"

namespace unishard::trainer {

void Trace::add(std::string_view stream, std::string_view name, Clock::time_point begin,
                Clock::time_point end) {
  const auto microseconds = [this](Clock::time_point time) {
    return std::chrono::duration<double, std::micro>(time - start_).count();
  };
  const std::lock_guard lock(mutex_);
  spans_.push_back(
      {std::string(stream), std::string(name), microseconds(begin), microseconds(end)});
}

std::vector<Trace::Span> Trace::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

void Trace::clear() {
  const std::lock_guard lock(mutex_);
  spans_.clear();
}

Json Trace::events(std::uint32_t process, std::size_t first) const {
  const double start =
      std::chrono::duration<double, std::micro>(unix_start_.time_since_epoch()).count();
  Json events = Json::array();
  const std::vector<Span> all = spans();
  for (std::size_t i = first; i < all.size(); ++i) {
    const Span& span = all[i];
    events.push_back({{"name", span.name},
                      {"cat", span.stream},
                      {"ph", "X"},
                      {"ts", start + span.begin},
                      {"dur", span.end - span.begin},
                      {"pid", process},
                      {"tid", span.stream}});
  }
  return events;
}

}  // namespace unishard::trainer
