#include "monitors.hpp"

#include "unishard/format/error.hpp"

#include "console.hpp"
#include "tensorboard_event.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>

namespace train_gpt {
namespace {

double unix_seconds() {
  using Seconds = std::chrono::duration<double>;
  return Seconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

void make_monitor_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    raise(unishard::ErrorCode::Io, fmt::format("creating the monitor's folder {}: {}",
                                               unishard::quote(folder), error.message()));
}

/// Returns 0, or why the text is not in the file.
int append_text(std::FILE* file, std::string_view text) {
  const bool is_written =
      std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  return is_written ? 0 : errno;
}

}  // namespace

Monitors::Monitors(const unishard::trainer::Config& config) : csv_folder_(config.csv_folder) {
  if (!csv_folder_.empty()) make_monitor_folder(csv_folder_);
  if (config.tensorboard_folder.empty()) return;
  make_monitor_folder(config.tensorboard_folder);
  const double now = unix_seconds();
  events_path_ = fmt::format("{}/events.out.tfevents.{:.0f}.{}.unishard", config.tensorboard_folder,
                             now, ::getpid());
  events_.reset(std::fopen(events_path_.c_str(), "wbe"));
  if (!events_) unishard::raise_errno("opening", events_path_, errno);
  if (const int error = append_text(events_.get(), first_event(now))) warn(events_path_, error);
}

void Monitors::write(const unishard::trainer::StepStats& stats, double next_rate,
                     std::int64_t samples) {
  write_value("Train/Samples/train_loss", stats.loss, samples);
  write_value("Train/Samples/lr", next_rate, samples);
  if (stats.loss_scale != 1) write_value("Train/Samples/loss_scale", stats.loss_scale, samples);
}

void Monitors::write_value(std::string_view name, double value, std::int64_t samples) {
  if (!csv_folder_.empty()) write_row(name, value, samples);
  if (!events_) return;
  const std::string event = scalar_event(name, value, samples, unix_seconds());
  if (const int error = append_text(events_.get(), event)) warn(events_path_, error);
}

void Monitors::write_row(std::string_view name, double value, std::int64_t samples) {
  std::string file_name(name);
  std::ranges::replace(file_name, '/', '_');
  const std::string path = fmt::format("{}/{}.csv", csv_folder_, file_name);
  auto table = tables_.find(name);
  std::string text;
  if (table == tables_.end()) {
    table = tables_.emplace(name, File(std::fopen(path.c_str(), "ae"))).first;
    text = fmt::format("step,{}\n", name.substr(name.rfind('/') + 1));
  }
  if (!table->second) return warn(path, errno);
  text += fmt::format("{},{}\n", samples, value);
  if (const int error = append_text(table->second.get(), text)) warn(path, error);
}

void Monitors::warn(const std::string& path, int error) {
  if (has_warned_) return;
  has_warned_ = true;
  say_error(0, "warning",
            fmt::format("writing {}: {}; training goes on", path,
                        std::generic_category().message(error)));
}

}  // namespace train_gpt
