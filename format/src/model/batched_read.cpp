#include "unishard/format/batched_read.hpp"

#include <cstring>
#include <utility>

namespace unishard {
namespace {

constexpr std::uint64_t kBatchBytes = std::uint64_t{1} << 20;
constexpr std::size_t kBatchRuns = 16384;

}  // namespace

BatchedRead::BatchedRead(std::uint64_t width, std::span<std::byte> out, Read read, IsNear is_near)
    : width_(width), out_(out), read_(std::move(read)), is_near_(std::move(is_near)) {}

std::span<std::byte> BatchedRead::to(const ReadRun& run) const {
  return out_.subspan(run.to * width_, run.count * width_);
}

void BatchedRead::add(const ReadRun& run) {
  if (run.count * width_ >= kBatchBytes) {  // long enough to be read into place
    flush();
    read_(run.from, to(run));
    return;
  }
  if (!batch_.empty()) {
    const std::uint64_t end = batch_.back().from + batch_.back().count;
    const bool fits = (run.from + run.count - batch_.front().from) * width_ <= kBatchBytes;
    if (!fits || batch_.size() == kBatchRuns || (run.from != end && !is_near_(end, run.from)))
      flush();
  }
  batch_.push_back(run);
}

void BatchedRead::flush() {
  if (batch_.empty()) return;
  const std::uint64_t begin = batch_.front().from;
  if (batch_.size() == 1) {
    read_(begin, to(batch_.front()));
  } else {
    buffer_.resize((batch_.back().from + batch_.back().count - begin) * width_);
    read_(begin, buffer_);
    for (const ReadRun& run : batch_) {
      std::memcpy(to(run).data(), buffer_.data() + (run.from - begin) * width_, run.count * width_);
    }
  }
  batch_.clear();
}

}  // namespace unishard
