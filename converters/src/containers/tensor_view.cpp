#include "containers/tensor_view.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/observer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace unishard::converters::torch {
namespace {

/// Upper bound on the elements of a view with strides of 0. Such a view has more elements than its
/// storage: a few bytes may claim exabytes.
constexpr std::uint64_t kRepeatedBytesMax = std::uint64_t{64} << 30;

/// Upper bound on the bytes of the storage that a strided read fetches at once.
constexpr std::uint64_t kGatherBytes = std::uint64_t{4} << 20;

/// Elements of a run that are farther apart are read one by one.
constexpr std::uint64_t kGatherStepBytes = 1024;

/// Consecutive elements of the last dimension, as element numbers of the storage.
struct Run {
  std::uint64_t first = 0, stride = 1, count = 0;
};

/// Calls `use` for consecutive runs that together are the elements `range` in row-major order.
template <class Use>
void for_each_run(const TensorView& view, ElementRange range, Use&& use) {
  if (range.empty()) return;
  if (view.shape.empty()) return use(Run{view.offset, 1, 1});
  const std::size_t last = view.shape.size() - 1;
  std::vector<std::uint64_t> index(view.shape.size());
  std::uint64_t rest = range.begin;
  for (std::size_t d = view.shape.size(); d-- > 0;) {
    index[d] = rest % view.shape[d];
    rest /= view.shape[d];
  }
  for (std::uint64_t left = range.size(); left > 0;) {
    std::uint64_t first = view.offset;
    for (std::size_t d = 0; d < index.size(); ++d) first += index[d] * view.strides[d];
    const std::uint64_t count = std::min(left, view.shape[last] - index[last]);
    use(Run{first, view.strides[last], count});
    left -= count;
    index[last] += count;
    for (std::size_t d = last; d > 0 && index[d] == view.shape[d]; --d) {
      index[d] = 0;
      ++index[d - 1];
    }
  }
}

/// Reads one run of elements; `scratch` holds the part of the storage that covers it.
void read_run(const StorageBytes& storage, Run run, std::uint64_t width, Reading reading,
              std::vector<std::byte>& scratch, std::byte* out) {
  if (run.stride == 1 || run.count == 1) {
    return storage.read(run.first * width, std::span(out, run.count * width), reading);
  }
  const std::uint64_t step_bytes = run.stride * width;
  if (step_bytes > kGatherStepBytes) {
    for (std::uint64_t i = 0; i < run.count; ++i)
      storage.read((run.first + i * run.stride) * width, std::span(out + i * width, width),
                   reading);
    return;
  }
  while (run.count > 0) {
    const std::uint64_t fit =
        step_bytes == 0 ? run.count : 1 + (kGatherBytes - width) / std::max(step_bytes, width);
    const std::uint64_t count = std::min(run.count, fit);
    scratch.resize((count - 1) * step_bytes + width);
    storage.read(run.first * width, scratch, reading);
    for (std::uint64_t i = 0; i < count; ++i, out += width)
      std::memcpy(out, scratch.data() + i * step_bytes, width);
    run.first += count * run.stride;
    run.count -= count;
  }
}

/// Reads whole rows (all elements of one index of the first dimension) of a view whose first
/// dimension has stride 1, as a transposed matrix has: element by element of a row, that of all
/// rows at once.
void read_rows(const TensorView& view, std::uint64_t first_row, std::uint64_t rows,
               std::uint64_t row_elements, Reading reading, std::byte* out) {
  const std::uint64_t width = size_of(view.dtype);
  std::vector<std::byte> column(rows * width);
  std::uint64_t at = 0;  // in the row
  TensorView row = view;
  row.offset += first_row;
  for_each_run(row, {0, row_elements}, [&](const Run& run) {
    for (std::uint64_t i = 0; i < run.count; ++i, ++at) {
      view.storage->read((run.first + i * run.stride) * width, column, reading);
      check_stop_request();
      for (std::uint64_t r = 0; r < rows; ++r)
        std::memcpy(out + (r * row_elements + at) * width, column.data() + r * width, width);
    }
  });
}

void read_runs(const TensorView& view, ElementRange range, Reading reading, std::byte* out) {
  const std::uint64_t width = size_of(view.dtype);
  std::vector<std::byte> scratch;
  for_each_run(view, range, [&](const Run& run) {
    check_stop_request();
    read_run(*view.storage, run, width, reading, scratch, out);
    out += run.count * width;
  });
}

void read_strided(const TensorView& view, ElementRange range, Reading reading, std::byte* out) {
  const bool is_transposed = view.shape.size() > 1 && view.strides.front() == 1;
  const std::uint64_t row = is_transposed ? view.elements() / view.shape.front() : 0;
  const std::uint64_t first = is_transposed ? (range.begin + row - 1) / row : 0,
                      end = is_transposed ? range.end / row : 0;
  if (end < first + 2) return read_runs(view, range, reading, out);
  const std::uint64_t width = size_of(view.dtype);
  const ElementRange rows{first * row, end * row};
  read_runs(view, {range.begin, rows.begin}, reading, out);
  out += (rows.begin - range.begin) * width;
  read_rows(view, first, end - first, row, reading, out);
  read_runs(view, {rows.end, range.end}, reading, out + rows.size() * width);
}

void swap_bytes(std::span<std::byte> bytes, std::uint64_t width) {
  for (std::size_t at = 0; at < bytes.size(); at += width)
    std::reverse(bytes.data() + at, bytes.data() + at + width);
}

/// Flips the sign bit of every `step`-th part of `width` bytes, beginning with part `first`.
void flip_signs(std::span<std::byte> bytes, std::uint64_t width, std::size_t first,
                std::size_t step) {
  for (std::size_t at = (first + 1) * width; at <= bytes.size(); at += step * width)
    bytes[at - 1] ^= std::byte{0x80};
}

}  // namespace

DamagedEntry::DamagedEntry(std::string message, const EntryChecksum* entry)
    : Error(
          ErrorCode::Corrupt, std::move(message),
          "restore this file from a copy, or use another checkpoint; --no-check-input copies what "
          "is there"),
      entry_(entry) {}

void StorageBytes::require(EntryChecksum::Verdict verdict) const {
  if (verdict != EntryChecksum::Verdict::Wrong) return;
  throw DamagedEntry(fmt::format("{}: bytes {} to {} do not match their CRC-32", window.name(),
                                 window.begin, window.begin + window.size),
                     checksum.get());
}

void StorageBytes::read(std::uint64_t offset, std::span<std::byte> out, Reading reading) const {
  const bool counts = checksum && reading == Reading::Data;
  if (!inflated) {
    window.read(offset, out);
    if (counts) require(checksum->add(offset, out));
    return;
  }
  if (offset > inflated->size() || out.size() > inflated->size() - offset) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: a storage is shorter than its tensor", window.name()));
  }
  const auto all = std::as_bytes(std::span(*inflated));
  if (counts) require(checksum->add(0, all));
  std::ranges::copy(all.subspan(offset, out.size()), out.begin());
}

std::uint64_t complete_checksum(const StorageBytes& storage, std::span<std::byte> buffer) {
  std::uint64_t bytes = 0;
  for (const ByteRange& gap : storage.checksum->missing()) {
    for (std::uint64_t at = gap.begin; at < gap.end; at += buffer.size()) {
      const auto part = buffer.first(std::min<std::uint64_t>(buffer.size(), gap.end - at));
      storage.read(at, part);
      bytes += part.size();
      check_stop_request();
    }
  }
  storage.require(storage.checksum->verdict());
  return bytes;
}

bool TensorView::contiguous() const {
  std::uint64_t expected = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (shape[d] != 1 && strides[d] != expected) return false;
    expected *= shape[d];
  }
  return true;
}

void TensorView::read(ElementRange range, std::span<std::byte> out, Reading reading) const {
  if (range.empty()) return;
  if (!storage) raise(ErrorCode::Unsupported, "a tensor on the meta device has no data");
  const std::uint64_t width = size_of(dtype);
  if (contiguous()) {
    storage->read((offset + range.begin) * width, out, reading);
  } else {
    read_strided(*this, range, reading, out.data());
  }
  const bool is_complex = info(dtype).kind == Kind::Complex;
  const std::uint64_t part = is_complex ? width / 2 : width;
  if (storage->big_endian && part > 1) swap_bytes(out, part);
  if (conjugate && is_complex) flip_signs(out, part, 1, 2);
  if (negative && (is_complex || info(dtype).kind == Kind::Float)) flip_signs(out, part, 0, 1);
}

std::vector<std::byte> TensorView::read_all(std::uint64_t limit_bytes) const {
  const std::uint64_t bytes = checked_mul(elements(), size_of(dtype), "bytes of a tensor");
  if (bytes > limit_bytes)
    raise(ErrorCode::Corrupt,
          fmt::format("a tensor of {} bytes where at most {} are expected", bytes, limit_bytes));
  std::vector<std::byte> out(bytes);
  read({0, elements()}, out);
  if (storage && storage->checksum) {
    std::vector<std::byte> buffer(std::min(storage->size(), kGatherBytes));
    complete_checksum(*storage, buffer);
  }
  return out;
}

ViewIdentity identity_of(const TensorView& view) {
  return {view.storage_key, view.offset,    view.shape,   view.strides,
          view.dtype,       view.conjugate, view.negative};
}

void validate(const TensorView& view, std::string_view what) {
  const std::uint64_t elements = element_count(view.shape);
  checked_mul(elements, size_of(view.dtype), what);
  if (elements == 0 || !view.storage) return;
  std::uint64_t last = view.offset;
  for (std::size_t d = 0; d < view.shape.size(); ++d) {
    last = checked_add(last, checked_mul(view.shape[d] - 1, view.strides[d], what), what);
  }
  const std::uint64_t bytes = elements * size_of(view.dtype);
  if (bytes > view.storage->size() && bytes > kRepeatedBytesMax) {
    raise(ErrorCode::Unsupported,
          fmt::format("{}: a view that repeats a storage of {} bytes until it has {}", what,
                      view.storage->size(), bytes));
  }
  const std::uint64_t end = checked_mul(checked_add(last, 1, what), size_of(view.dtype), what);
  if (end > view.storage->size()) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: the tensor reaches to byte {} of a storage of {} bytes", what, end,
                      view.storage->size()));
  }
}

}  // namespace unishard::converters::torch
