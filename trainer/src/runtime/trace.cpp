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

Json Trace::to_json(std::uint32_t process) const {
  const double start =
      std::chrono::duration<double, std::micro>(unix_start_.time_since_epoch()).count();
  Json events = Json::array();
  for (const Span& span : spans()) {
    events.push_back({{"name", span.name},
                      {"cat", span.stream},
                      {"ph", "X"},
                      {"ts", start + span.begin},
                      {"dur", span.end - span.begin},
                      {"pid", process},
                      {"tid", span.stream}});
  }
  return {{"traceEvents", events}, {"displayTimeUnit", "ms"}};
}

}  // namespace unishard::trainer
