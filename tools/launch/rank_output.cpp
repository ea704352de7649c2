#include "launch/rank_output.hpp"

#include "unishard/format/error.hpp"

#include "launch/write_all.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace unishard::tools {

RankOutput::RankOutput(bool is_prefixed, std::string log_folder)
    : is_prefixed_(is_prefixed), log_folder_(std::move(log_folder)) {
  if (log_folder_.empty()) return;
  std::error_code code;
  std::filesystem::create_directories(log_folder_, code);
  if (code) raise_errno("making the folder", log_folder_, code.value());
}

void RankOutput::write(std::uint32_t rank, int stream, std::string_view bytes) {
  if (!log_folder_.empty()) write_log(rank, bytes);
  if (!is_prefixed_) {
    if (const int error = write_all(stream, bytes); error != 0) note_failure(error, stream, "");
    return;
  }
  LinePrefixer& lines =
      lines_.try_emplace({rank, stream}, fmt::format("[rank {}] ", rank), stream).first->second;
  if (bytes.empty()) lines.finish();
  lines.write(bytes);
  if (lines.failure() != 0) note_failure(lines.failure(), stream, "");
}

void RankOutput::write_log(std::uint32_t rank, std::string_view bytes) {
  const std::string path = fmt::format("{}/rank-{}.log", log_folder_, rank);
  auto found = logs_.find(rank);
  if (found == logs_.end()) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0) note_failure(errno, STDOUT_FILENO, path);
    found = logs_.emplace(rank, Descriptor(file)).first;
  }
  if (found->second.get() < 0) return;
  if (const int error = write_all(found->second.get(), bytes); error != 0) {
    note_failure(error, STDOUT_FILENO, path);
    found->second.close();
  }
}

void RankOutput::finish() {
  for (auto& [key, lines] : lines_) {
    lines.finish();
    if (lines.failure() != 0) note_failure(lines.failure(), key.second, "");
  }
}

/// Reports once, on the other stream, that output is lost from now on.
void RankOutput::note_failure(int error, int descriptor, std::string_view what) {
  if (failure_ != 0) return;
  failure_ = error;
  const std::string text =
      fmt::format("unishard launch: warning: output of the ranks cannot be written{}: {}\n",
                  what.empty() ? "" : fmt::format(" to {}", what), ::strerror(error));
  const int other = descriptor == STDOUT_FILENO ? STDERR_FILENO : STDOUT_FILENO;
  if (::write(other, text.data(), text.size()) < 0) return;  // the exit status reports it
}

}  // namespace unishard::tools
