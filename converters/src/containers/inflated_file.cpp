#include "containers/inflated_file.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/observer.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <iterator>
#include <vector>

namespace unishard::converters::torch {
namespace {

constexpr std::uint64_t kStepBytesMin = std::uint64_t{4} << 20;
constexpr std::uint64_t kCopies = 64;
constexpr std::size_t kIdleDecoders = 4;
constexpr std::uint64_t kKeptBytes = std::uint64_t{1} << 20;  // what is decoded again at once
constexpr std::size_t kBufferBytes = std::size_t{64} << 10;

[[noreturn]] void refuse_writing() {
  raise(ErrorCode::Internal, "written to a deflated zip entry");
}

}  // namespace

/// zlib's state, which must not move, and what it has consumed and produced.
class InflatedFile::Decoder {
 public:
  explicit Decoder(const Window& stored) : stored_(stored) {
    require_started(inflateInit2(&stream_, -MAX_WBITS));
  }
  Decoder(const Decoder& other) : stored_(other.stored_), stored_at_(other.consumed()) {
    require_started(inflateCopy(&stream_, const_cast<z_stream*>(&other.stream_)));
    stream_.avail_in = 0;
  }
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder() { inflateEnd(&stream_); }

  std::uint64_t position() const { return stream_.total_out; }

  /// Fills `out`.
  void decode(std::span<std::byte> out) {
    while (!out.empty()) {
      if (stream_.avail_in == 0) fill();
      const auto wanted = static_cast<uInt>(std::min<std::size_t>(out.size(), 1u << 30));
      stream_.next_out = reinterpret_cast<Bytef*>(out.data());
      stream_.avail_out = wanted;
      const int result = inflate(&stream_, Z_NO_FLUSH);
      const std::size_t made = wanted - stream_.avail_out;
      out = out.subspan(made);
      const bool is_stuck = made == 0 && stream_.avail_in == 0 && stored_at_ == stored_.size;
      const bool is_failed = result != Z_OK && result != Z_BUF_ERROR && result != Z_STREAM_END;
      if (is_failed || is_stuck || (result == Z_STREAM_END && !out.empty())) damaged();
    }
  }

  /// Throws: Corrupt unless the data ends here.
  void require_end() {
    std::byte more{};
    for (int result = Z_OK; result != Z_STREAM_END;) {
      if (stream_.avail_in == 0) fill();
      stream_.next_out = reinterpret_cast<Bytef*>(&more);
      stream_.avail_out = 1;
      result = inflate(&stream_, Z_NO_FLUSH);
      const bool is_stuck =
          result == Z_BUF_ERROR && stream_.avail_in == 0 && stored_at_ == stored_.size;
      const bool is_failed = result != Z_OK && result != Z_BUF_ERROR && result != Z_STREAM_END;
      if (stream_.avail_out == 0 || is_failed || is_stuck) damaged();
    }
  }

 private:
  std::uint64_t consumed() const { return stored_at_ - stream_.avail_in; }

  static void require_started(int result) {
    if (result != Z_OK) raise(ErrorCode::MemoryLimit, "zlib could not start");
  }

  void fill() {
    if (buffer_.empty()) buffer_.resize(kBufferBytes);
    const auto part = std::span(buffer_).first(
        std::min<std::uint64_t>(buffer_.size(), stored_.size - stored_at_));
    stored_.read(stored_at_, part);
    stored_at_ += part.size();
    stream_.next_in = reinterpret_cast<Bytef*>(part.data());
    stream_.avail_in = static_cast<uInt>(part.size());
  }

  [[noreturn]] void damaged() const {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: the deflated bytes {} to {} do not inflate to their size",
                      stored_.name(), stored_.begin, stored_.begin + stored_.size));
  }

  const Window& stored_;
  z_stream stream_{};
  std::uint64_t stored_at_ = 0;  ///< end of what is in the buffer
  std::vector<std::byte> buffer_;
};

InflatedFile::InflatedFile(Window stored, std::uint64_t bytes)
    : stored_(std::move(stored)),
      bytes_(bytes),
      step_(std::max(kStepBytesMin, bytes / kCopies + 1)) {}

InflatedFile::~InflatedFile() = default;

void InflatedFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > bytes_ || out.size() > bytes_ - offset) {
    raise(ErrorCode::Corrupt, fmt::format("{}: truncated: an entry of {} bytes is read to byte {}",
                                          path().string(), bytes_, offset + out.size()));
  }
  if (out.empty()) return;
  std::unique_ptr<Decoder> decoder = take_decoder(offset);
  std::vector<std::byte> skipped;
  while (decoder->position() < offset) {
    skipped.resize(std::min<std::uint64_t>(kBufferBytes, offset - decoder->position()));
    advance(*decoder, skipped);
  }
  advance(*decoder, out);
  if (decoder->position() == bytes_) {
    finish(*decoder);
  } else {
    keep(std::move(decoder));
  }
}

/// Returns the decoder that is the least behind `offset`.
std::unique_ptr<InflatedFile::Decoder> InflatedFile::take_decoder(std::uint64_t offset) const {
  const std::scoped_lock lock(mutex_);
  const auto before = [&](Decoders& decoders) {
    const auto next = decoders.upper_bound(offset);
    return next == decoders.begin() ? decoders.end() : std::prev(next);
  };
  const auto idle = before(idle_), copy = before(copies_);
  if (idle != idle_.end() && (copy == copies_.end() || copy->first <= idle->first)) {
    std::unique_ptr<Decoder> decoder = std::move(idle->second);
    idle_.erase(idle);
    return decoder;
  }
  return copy != copies_.end() ? std::make_unique<Decoder>(*copy->second)
                               : std::make_unique<Decoder>(stored_);
}

/// Fills `out`; copies the decoder at each multiple of step_ that it passes.
void InflatedFile::advance(Decoder& decoder, std::span<std::byte> out) const {
  while (!out.empty()) {
    const std::uint64_t left = step_ - decoder.position() % step_;
    const auto part = out.first(std::min<std::uint64_t>(out.size(), left));
    decoder.decode(part);
    check_stop_request();
    out = out.subspan(part.size());
    if (part.size() < left) continue;
    const std::scoped_lock lock(mutex_);
    if (!copies_.contains(decoder.position()))
      copies_.emplace(decoder.position(), std::make_unique<Decoder>(decoder));
  }
}

void InflatedFile::keep(std::unique_ptr<Decoder> decoder) const {
  const std::uint64_t position = decoder->position();
  if (position < kKeptBytes) return;
  const std::scoped_lock lock(mutex_);
  if (idle_.size() >= kIdleDecoders) idle_.erase(idle_.begin());
  idle_.insert_or_assign(position, std::move(decoder));
}

/// Whoever reads the last byte has mostly read all others: what could help them is dropped.
void InflatedFile::finish(Decoder& decoder) const {
  decoder.require_end();
  const std::scoped_lock lock(mutex_);
  copies_.clear();
  idle_.clear();
}

void InflatedFile::write_at(std::uint64_t, std::span<const std::byte>) { refuse_writing(); }
void InflatedFile::reserve(std::uint64_t) { refuse_writing(); }
void InflatedFile::resize(std::uint64_t) { refuse_writing(); }

Window content_window(const ZipReader& zip, const ZipEntry& entry) {
  const Window& archive = zip.window();
  Window stored{archive.file, archive.begin + zip.data_offset(entry), entry.stored_bytes};
  if (!entry.deflated) return stored;
  return {std::make_shared<const InflatedFile>(std::move(stored), entry.bytes), 0, entry.bytes};
}

}  // namespace unishard::converters::torch
