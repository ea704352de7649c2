#include "containers/equal_elements.hpp"

#include "unishard/format/observer.hpp"

#include <algorithm>
#include <span>
#include <vector>

namespace unishard::converters {
namespace {

constexpr std::uint64_t kComparedBytes = std::uint64_t{1} << 20;

/// Calls `read_a` and `read_b` with (begin, end, buffer) for blocks of `bytes` bytes until they
/// differ.
template <class ReadA, class ReadB>
bool equal_blocks(std::uint64_t bytes, std::uint64_t width, const ReadA& read_a,
                  const ReadB& read_b) {
  const std::uint64_t step = std::max(kComparedBytes / width * width, width);
  std::vector<std::byte> a(std::min(step, bytes)), b(a.size());
  for (std::uint64_t begin = 0; begin < bytes; begin += step) {
    check_stop_request();
    const std::uint64_t count = std::min(step, bytes - begin);
    read_a(begin, std::span(a).first(count));
    read_b(begin, std::span(b).first(count));
    if (!std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(count), b.begin()))
      return false;
  }
  return true;
}

/// Returns whether the checksums of two storages are known and equal, and the views lie in them in
/// the same way.
bool have_equal_checksums(const torch::TensorView& a, const torch::TensorView& b) {
  const auto& first = a.storage->checksum;
  const auto& second = b.storage->checksum;
  return first && second && first->bytes() == second->bytes() &&
         first->expected() == second->expected() && a.offset == b.offset &&
         a.strides == b.strides && a.storage->big_endian == b.storage->big_endian &&
         a.conjugate == b.conjugate && a.negative == b.negative;
}

}  // namespace

bool equal_bytes(const File& a, std::uint64_t a_begin, const File& b, std::uint64_t b_begin,
                 std::uint64_t bytes) {
  return equal_blocks(
      bytes, 1, [&](std::uint64_t at, std::span<std::byte> out) { a.read_at(a_begin + at, out); },
      [&](std::uint64_t at, std::span<std::byte> out) { b.read_at(b_begin + at, out); });
}

bool equal_elements(const torch::TensorView& a, const torch::TensorView& b) {
  if (a.dtype != b.dtype || a.shape != b.shape) return false;
  if (!a.storage || !b.storage) return !a.storage && !b.storage;
  if (have_equal_checksums(a, b)) return true;
  const std::uint64_t width = size_of(a.dtype);
  const auto reads = [&](const torch::TensorView& view) {
    return [&view, width](std::uint64_t at, std::span<std::byte> out) {
      view.read({at / width, (at + out.size()) / width}, out, torch::Reading::Sample);
    };
  };
  return equal_blocks(a.elements() * width, width, reads(a), reads(b));
}

std::vector<std::byte> sampled_bytes(const torch::TensorView& view, std::uint64_t first,
                                     std::uint64_t count) {
  std::vector<std::byte> bytes(count * size_of(view.dtype));
  view.read({first, first + count}, bytes, torch::Reading::Sample);
  return bytes;
}

bool has_one_value(const torch::TensorView& view) {
  constexpr std::uint64_t kBlock = 4096;
  const std::vector<std::byte> first = sampled_bytes(view, 0, 1);
  for (std::uint64_t begin = 0; begin < view.elements(); begin += kBlock) {
    const std::vector<std::byte> block =
        sampled_bytes(view, begin, std::min(kBlock, view.elements() - begin));
    for (std::size_t at = 0; at < block.size(); at += first.size()) {
      if (!std::ranges::equal(std::span(block).subspan(at, first.size()), first)) return false;
    }
  }
  return true;
}

}  // namespace unishard::converters
