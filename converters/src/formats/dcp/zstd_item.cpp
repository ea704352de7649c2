#include "formats/dcp/zstd_item.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <memory>

namespace unishard::converters::dcp {
namespace {

constexpr std::uint64_t kStepBytes = std::uint64_t{1} << 20;
/// Upper bound on the unpacked size of an item, which must be unpacked as a whole.
constexpr std::uint64_t kItemMemoryBytes = std::uint64_t{8} << 30;

[[noreturn]] void damaged(const torch::Window& window, std::string_view problem) {
  raise(ErrorCode::Corrupt, fmt::format("{}: the zstd item at byte {} is damaged: {}",
                                        window.name(), window.begin, problem));
}

/// Reads the window's bytes from the start, block by block.
class Input {
 public:
  explicit Input(const torch::Window& window) : window_(window) {}
  bool refill() {
    if (buffer.pos < buffer.size) return true;
    bytes_.resize(std::min(kStepBytes, window_.size - at_));
    window_.read(at_, std::as_writable_bytes(std::span(bytes_)));
    at_ += bytes_.size();
    buffer = {bytes_.data(), bytes_.size(), 0};
    return !bytes_.empty();
  }
  ZSTD_inBuffer buffer{};

 private:
  const torch::Window& window_;
  std::uint64_t at_ = 0;
  std::string bytes_;
};

}  // namespace

std::string unpack_zstd(const torch::Window& window, std::uint64_t limit_bytes) {
  const std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(),
                                                                             ZSTD_freeDStream);
  if (!stream) raise(ErrorCode::Io, "zstd could not start");
  const std::uint64_t limit = std::min(limit_bytes, kItemMemoryBytes);
  Input input(window);
  std::string out;
  std::size_t done = 0, left = 1;  // left: 0 at the end of a frame
  bool is_flushed = true;
  while (!is_flushed || input.refill()) {
    if (done == out.size()) {
      if (done > limit_bytes)
        damaged(window, fmt::format("it unpacks to more than {} bytes", limit_bytes));
      if (done > limit) {
        raise(ErrorCode::Unsupported,
              fmt::format("{}: the zstd item at byte {} unpacks to more than {} bytes",
                          window.name(), window.begin, limit),
              "save it again without compression");
      }
      out.resize(std::min(limit + 1, std::max<std::uint64_t>(2 * done, kStepBytes)));
    }
    ZSTD_outBuffer target{out.data(), out.size(), done};
    left = ZSTD_decompressStream(stream.get(), &target, &input.buffer);
    if (ZSTD_isError(left) != 0) damaged(window, ZSTD_getErrorName(left));
    is_flushed = left == 0 || target.pos < target.size;
    done = target.pos;
  }
  if (left != 0) damaged(window, "it ends early");
  out.resize(done);
  return out;
}

}  // namespace unishard::converters::dcp
