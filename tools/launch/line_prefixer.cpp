#include "launch/line_prefixer.hpp"

#include "launch/write_all.hpp"

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
  const int error = write_all(descriptor_, prefix_ + std::string(line) + "\n");
  if (error != 0) failure_ = error;  // the ranks go on
}

}  // namespace unishard::tools
