#include "runtime/device_trace.hpp"

#include "unishard/format/error.hpp"

#include <torch/version.h>

#include <utility>

namespace unishard::trainer::detail {
namespace {

/// Pieces that are kept until those that have ended are added.
constexpr std::size_t kPieces = 4096;

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)

constexpr bool kMeasures = true;

void wait_for(const c10::Event& event) { event.synchronize(); }

double elapsed_milliseconds(const c10::Event& from, const c10::Event& to) {
  return from.elapsedTime(to);
}

#else

constexpr bool kMeasures = false;

void wait_for(const c10::Event&) {}

double elapsed_milliseconds(const c10::Event&, const c10::Event&) { return 0; }

#endif

c10::Event new_event(c10::Stream stream) {
  return c10::Event(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT);
}

}  // namespace

DeviceTrace::DeviceTrace(Trace& trace, c10::Stream stream)
    : trace_(trace), zero_(new_event(stream)) {
  if (!kMeasures) {
    raise(ErrorCode::Unsupported, "this LibTorch does not tell when a device did what",
          "leave out the trace, or use LibTorch 2.4 or later");
  }
  zero_.record(stream);
  wait_for(zero_);
  zero_time_ = Trace::Clock::now();
}

DeviceTrace::~DeviceTrace() { complete(); }

std::size_t DeviceTrace::begin(std::string_view stream, std::string name, c10::Stream where) {
  if (pieces_.size() >= kPieces) add_ended(/*waits=*/false);
  pieces_.push_back({stream, std::move(name), new_event(where), new_event(where)});
  pieces_.back().begin.record(where);
  return added_ + pieces_.size() - 1;
}

void DeviceTrace::end(std::size_t number, c10::Stream where) {
  Piece& piece = pieces_[number - added_];
  piece.end.record(where);
  piece.has_ended = true;
}

void DeviceTrace::add_ended(bool waits) {
  const auto time_of = [this](const c10::Event& event) {
    const std::chrono::duration<double, std::milli> since_zero(elapsed_milliseconds(zero_, event));
    return zero_time_ + std::chrono::duration_cast<Trace::Clock::duration>(since_zero);
  };
  std::size_t count = 0;
  for (const Piece& piece : pieces_) {
    if (!piece.has_ended) break;
    if (waits) wait_for(piece.end);
    if (!piece.end.query()) break;
    trace_.add(piece.stream, piece.name, time_of(piece.begin), time_of(piece.end));
    ++count;
  }
  pieces_.erase(pieces_.begin(), pieces_.begin() + static_cast<std::ptrdiff_t>(count));
  added_ += count;
}

}  // namespace unishard::trainer::detail
