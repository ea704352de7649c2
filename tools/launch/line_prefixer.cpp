#include "launch/line_prefixer.hpp"

#include <unistd.h>

#include <cerrno>

namespace unishard::tools {
namespace {

constexpr std::size_t kLineMax = 64 << 10;

}  // namespace

void LinePrefixer::write(std::string_view text) {
  while (!text.empty()) {
    const std::size_t newline = text.find('\n');
    pending_ += text.substr(0, newline);
    if (newline == std::string_view::npos && pending_.size() < kLineMax) return;
    emit(pending_);
    pending_.clear();
    if (newline == std::string_view::npos) return;
    text.remove_prefix(newline + 1);
  }
}

void LinePrefixer::finish() {
  if (!pending_.empty()) emit(pending_);
  pending_.clear();
}

void LinePrefixer::emit(std::string_view line) {
  const std::string whole = prefix_ + std::string(line) + "\n";
  std::string_view rest = whole;
  while (!rest.empty()) {
    const ssize_t count = ::write(descriptor_, rest.data(), rest.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {  // the ranks go on
      failure_ = errno;
      return;
    }
    rest.remove_prefix(static_cast<std::size_t>(count));
  }
}

}  // namespace unishard::tools
