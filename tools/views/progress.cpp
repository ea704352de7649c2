#include "views/progress.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include "support/size_text.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace unishard::cli {
namespace {

volatile std::sig_atomic_t interrupt_signal = 0;
volatile std::sig_atomic_t ignores_second = 0;

void on_interrupt(int number) {
  if (interrupt_signal != 0 && ignores_second == 0) ::_exit(128 + number);
  interrupt_signal = number;
}

}  // namespace

void catch_interrupts(SecondInterrupt second) {
  if (second == SecondInterrupt::Ignored) ignores_second = 1;
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM}) ::sigaction(number, &action, nullptr);
  struct sigaction hangup {};  // ignored under nohup, which must stay so
  if (::sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
    ::sigaction(SIGHUP, &action, nullptr);
}

int interrupting_signal() { return interrupt_signal != 0 ? interrupt_signal : SIGTERM; }

void throw_if_interrupted() {
  if (interrupt_signal != 0)
    raise(ErrorCode::Cancelled, "stopped on request",
          "what was begun has been removed; a result that was complete by then stays");
}

Progress::Form Progress::form_for(bool quiet) {
  if (quiet) return Form::Hidden;
  const char* wanted = std::getenv("UNISHARD_PROGRESS");
  if (wanted != nullptr && std::string_view(wanted) == "json") return Form::Json;
  return ::isatty(STDERR_FILENO) == 1 ? Form::Bar : Form::Hidden;
}

Progress::Progress(bool quiet) : form_(form_for(quiet)) {}

Progress::~Progress() { end(); }

void Progress::begin(std::string_view what, std::uint64_t total_bytes) {
  const std::lock_guard lock(mutex_);
  what_ = what;
  total_bytes_ = total_bytes;
  done_bytes_ = 0;
  begin_ = Clock::now();
}

void Progress::advance(std::uint64_t bytes) {
  done_bytes_ += bytes;
  throw_if_interrupted();
  if (form_ == Form::Hidden) return;
  const auto now = Clock::now();
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock && now - shown_ > std::chrono::milliseconds(100)) show(now);
}

void Progress::show(Clock::time_point now) {
  const std::string text =
      form_ == Form::Bar
          ? bar(now)
          : Json{{"progress",
                  {{"what", what_}, {"done", done_bytes_.load()}, {"total", total_bytes_}}}}
                    .dump() +
                "\n";
  std::fputs(text.c_str(), stderr);  // failing output is no reason to stop the work
  std::fflush(stderr);
  shown_ = now;
  is_shown_ = true;
}

std::string Progress::bar(Clock::time_point now) const {
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const auto done = static_cast<double>(done_bytes_);
  const double fraction =
      total_bytes_ > 0 ? std::min(done / static_cast<double>(total_bytes_), 1.0) : 0;
  const double rate = seconds > 0 ? done / seconds : 0;
  constexpr std::size_t kBar = 24;
  const auto filled = static_cast<std::size_t>(fraction * kBar);
  const std::string left =
      fraction > 0 ? tools::format_duration(seconds / fraction - seconds) : std::string("?");
  return fmt::format("\r{} [{}{}] {:3.0f}%  {}/s  {} left\033[K", what_, std::string(filled, '#'),
                     std::string(kBar - filled, ' '), 100 * fraction,
                     tools::format_bytes(static_cast<std::uint64_t>(rate)), left);
}

void Progress::end() {
  const std::lock_guard lock(mutex_);
  if (is_shown_ && form_ == Form::Bar) std::fputs("\r\033[K", stderr);
  if (is_shown_ && form_ == Form::Json) show(Clock::now());
  is_shown_ = false;
}

double Progress::seconds() const {
  return std::chrono::duration<double>(Clock::now() - begin_).count();
}

std::string Progress::summary(std::uint64_t bytes) const {
  const double elapsed = std::max(seconds(), 1e-3);
  const auto rate = static_cast<std::uint64_t>(static_cast<double>(bytes) / elapsed);
  return fmt::format("{} in {:.1f} s ({}/s)", tools::format_bytes(bytes), elapsed,
                     tools::format_bytes(rate));
}

}  // namespace unishard::cli
