#include "checkpoint/staging.hpp"

#include "unishard/format/error.hpp"

#include "checkpoint/in_parallel.hpp"
#include "checkpoint/stream_copy.hpp"
#include "device/device_copies.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <utility>

namespace unishard::trainer::detail {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kHugePage = HugeBuffer::kHugePage;
constexpr std::uint64_t kAlign = 64;  // of a fragment's copy
constexpr std::size_t kRoundedElements = std::size_t{512} << 10;
constexpr std::uint64_t kPieceBytes = std::uint64_t{8} << 20;

std::uint64_t round_up_to(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Returns the index of the fragment of `tensor` that contains `range`.
std::optional<std::size_t> find_holder(std::span<const Fragment> fragments, std::size_t tensor,
                                       ElementRange range) {
  const auto begin = std::ranges::lower_bound(fragments, tensor, {}, &Fragment::tensor);
  for (auto at = begin; at != fragments.end() && at->tensor == tensor; ++at) {
    if (at->range.contains(range)) return static_cast<std::size_t>(at - fragments.begin());
  }
  return std::nullopt;
}

/// Returns the staged fp32 elements from which a derived fragment is rounded.
std::optional<StagingPlan::Place> find_master(const LocalState& local, const Catalog& catalog,
                                              std::span<const Fragment> fragments,
                                              const StagingPlan& plan, const Fragment& fragment) {
  if (!catalog.tensors[fragment.tensor].derived) return std::nullopt;
  const auto master = local.master_of(fragment.tensor);
  const auto holder = master ? find_holder(fragments, *master, fragment.range) : std::nullopt;
  if (!holder || plan.places[*holder].is_in_file) return std::nullopt;
  const std::uint64_t first = fragment.range.begin - fragments[*holder].range.begin;
  return StagingPlan::Place{.offset = plan.places[*holder].offset + first * sizeof(float),
                            .bytes = fragment.range.size() * sizeof(float),
                            .is_master = true,
                            .dtype = catalog.tensors[fragment.tensor].dtype};
}

/// The bytes that a thread copies at a time.
struct Piece {
  std::byte* to;
  std::span<const std::byte> from;
};

void cut(std::byte* to, std::span<const std::byte> from, std::vector<Piece>& pieces) {
  for (std::uint64_t at = 0; at < from.size(); at += kPieceBytes)
    pieces.push_back({to + at, from.subspan(at, std::min(kPieceBytes, from.size() - at))});
}

void give_rounded(ShardWriter& writer, std::size_t index, ElementRange range,
                  std::span<const std::byte> master, DType dtype) {
  const auto round = dtype == DType::Float16 ? round_to_float16 : round_to_bfloat16;
  std::vector<std::uint16_t> rounded;
  for (std::size_t at = 0; at < range.size(); at += rounded.size()) {
    rounded.resize(std::min<std::size_t>(kRoundedElements, range.size() - at));
    for (std::size_t i = 0; i < rounded.size(); ++i) {
      float value = 0;
      std::memcpy(&value, master.data() + (at + i) * sizeof value, sizeof value);
      rounded[i] = round(value);
    }
    writer.write(index, {range.begin + at, range.begin + at + rounded.size()},
                 std::as_bytes(std::span(rounded)));
  }
}

/// Calls give() for parts of `tensor` of at most `most` elements, in order.
template <class Give>
void give_parts(const LocalTensor& tensor, std::uint64_t most, const Give& give) {
  const std::uint64_t all = tensor.held.size();
  for (std::uint64_t begin = 0; begin < all; begin += most) {
    give(tensor.part({tensor.held.begin + begin, tensor.held.begin + std::min(begin + most, all)}));
  }
}

void give_from_file(ShardWriter& writer, std::size_t index, const LocalTensor& tensor) {
  give_parts(tensor, kRoundedElements, [&](const LocalTensor& part) {
    writer.write(index, part.held, part.on_host().bytes);
  });
}

void give_from_device(ShardWriter& writer, std::size_t index, const LocalTensor& tensor,
                      PinnedBuffers& buffers) {
  PinnedBuffers::Loan buffer = buffers.lend();
  const std::uint64_t most = PinnedBuffers::kBytes / c10::elementSize(tensor.stored);
  give_parts(tensor, most, [&](const LocalTensor& part) {
    writer.write(index, part.held, buffer.copy(part.on_device.to(part.stored)));
  });
}

using StartCopy = std::function<void(std::span<std::byte> to, const at::Tensor& from)>;

/// Copies what is in host memory with several threads, and gives what is on a device to `start`.
void copy(std::span<const Transfer> transfers, const StartCopy& start) {
  std::vector<Piece> pieces;
  for (const Transfer& each : transfers) {
    if (each.from.on_device.defined()) {
      start(each.to, each.from.on_device);
    } else {
      cut(each.to.data(), each.from.bytes, pieces);
    }
  }
  in_parallel(pieces.size(),
              [&](std::size_t index) { stream_copy(pieces[index].to, pieces[index].from); });
}

/// Returns the fragments that are in files, with snapshots of their arrays. The room for what is
/// written meanwhile is reserved before.
std::vector<LocalTensor> keep_in_files(const LocalState& local, const Catalog& catalog,
                                       std::span<const Fragment> fragments) {
  std::vector<LocalTensor> located(fragments.size());
  std::map<const FileArray*, StateArray> arrays;
  for (std::size_t f = 0; f < fragments.size(); ++f) {
    LocalTensor tensor = locate(local, catalog, fragments[f]);
    if (!tensor.in_file.defined()) continue;
    arrays.emplace(tensor.in_file.file().get(), tensor.in_file);
    located[f] = std::move(tensor);
  }
  std::map<BlockFile*, std::size_t> blocks;
  for (const auto& [array, handle] : arrays) blocks[&array->file()] += array->blocks();
  for (const auto& [file, count] : blocks) file->make_free(count);
  for (auto& [array, handle] : arrays) handle = handle.snapshot();
  for (LocalTensor& each : located)
    if (each.in_file.defined()) each.in_file = arrays.at(each.in_file.file().get());
  return located;
}

}  // namespace

void give_local(ShardWriter& writer, std::size_t index, const LocalTensor& tensor,
                PinnedBuffers& buffers) {
  if (tensor.in_file.defined()) return give_from_file(writer, index, tensor);
  if (tensor.on_device.defined() && !tensor.on_device.is_cpu())
    return give_from_device(writer, index, tensor, buffers);
  writer.write(index, tensor.held, tensor.on_host().bytes);
}

LocalTensor locate(const LocalState& local, const Catalog& catalog, const Fragment& fragment) {
  const TensorInfo& info = catalog.tensors[fragment.tensor];
  const LocalTensor tensor = local.local(fragment.tensor);
  if (!tensor.held.contains(fragment.range)) {
    raise(ErrorCode::Internal,
          "save: this rank does not hold what it is to write of " + info.label());
  }
  return tensor.part(fragment.range);
}

StagingPlan plan_staging(const LocalState& local, const Catalog& catalog,
                         std::span<const Fragment> fragments) {
  StagingPlan plan;
  // In the order of tensors, a master precedes the weights that are rounded from it.
  for (const Fragment& fragment : fragments) {
    if (local.local(fragment.tensor).in_file.defined()) {
      plan.places.push_back({.is_in_file = true});
      continue;
    }
    if (const auto master = find_master(local, catalog, fragments, plan, fragment)) {
      plan.places.push_back(*master);
      continue;
    }
    const std::uint64_t bytes =
        fragment.range.size() * size_of(catalog.tensors[fragment.tensor].dtype);
    plan.places.push_back({.offset = plan.bytes, .bytes = bytes});
    plan.bytes += round_up_to(bytes, kAlign);
  }
  return plan;
}

Staging::~Staging() { finish_copies(); }

void Staging::reserve(std::uint64_t bytes) {
  if (bytes <= capacity_bytes()) return;
  finish_copies();
  pinned_.reset();
  memory_ = {};  // frees the old memory before the larger is allocated
  memory_ = HugeBuffer(round_up_to(bytes, kHugePage));
  in_parallel(capacity_bytes() / kHugePage, [&](std::size_t index) {
    volatile std::byte* const begin = memory_.bytes().data() + index * kHugePage;
    for (std::uint64_t at = 0; at < kHugePage; at += kPage) begin[at] = std::byte{0};
  });
  const at::Device device = runtime_.device();
  if (!device.is_cpu()) pinned_.emplace(memory_.bytes(), device);
}

void Staging::capture(const LocalState& local, const Catalog& catalog,
                      const std::vector<Fragment>& fragments) {
  finish_copies();
  plan_ = plan_staging(local, catalog, fragments);
  reserve(plan_.bytes);
  in_files_ = keep_in_files(local, catalog, fragments);
  std::vector<Transfer> now, behind;
  for (std::size_t f = 0; f < fragments.size(); ++f) {
    const StagingPlan::Place& place = plan_.places[f];
    if (place.is_master || place.is_in_file) continue;
    LocalTensor from = locate(local, catalog, fragments[f]);
    if (from.on_device.defined()) from.on_device = from.on_device.to(from.stored);
    (local.is_own(fragments[f].tensor) ? behind : now)
        .push_back({memory_.bytes().subspan(place.offset, place.bytes), std::move(from)});
  }
  DeviceCopies copies;
  copy(now, [&](std::span<std::byte> to, const at::Tensor& from) { copies.start(to, from); });
  copies.wait();
  copy_behind(std::move(behind));
}

/// Gives the copies to stream Copy, for when Compute has done what it was given.
void Staging::copy_behind(std::vector<Transfer> transfers) {
  const auto given = std::make_shared<std::promise<std::optional<c10::Stream>>>();
  copies_ = given->get_future().share();
  runtime_.wait(Stream::Copy, runtime_.record(Stream::Compute));
  runtime_.run(
      Stream::Copy, "copy for a save",
      [given, transfers = std::move(transfers), device = runtime_.device()] {
        try {
          copy(transfers, detail::copy_behind);
          given->set_value(device.is_cpu() ? std::nullopt : std::optional(current_stream(device)));
        } catch (...) {  // the save fails, not the stream
          given->set_exception(std::current_exception());
        }
      });
  copied_ = runtime_.record(Stream::Copy);
}

void Staging::before_change() {
  if (copied_) runtime_.wait(Stream::Compute, std::exchange(copied_, nullptr));
}

/// Throws: what a copy has thrown.
void Staging::wait_for_copies() const {
  const auto copies = copies_;  // of this thread
  if (!copies.valid()) return;
  if (const std::optional<c10::Stream> stream = copies.get()) stream->synchronize();
}

void Staging::finish_copies() const noexcept {
  try {
    wait_for_copies();
  } catch (const std::exception&) {  // the save reports it
  }
}

void Staging::give(ShardWriter& writer, std::size_t index) const {
  wait_for_copies();
  const StagingPlan::Place& place = plan_.places[index];
  if (place.is_in_file) return give_from_file(writer, index, in_files_[index]);
  const std::span<const std::byte> bytes(memory_.bytes().data() + place.offset, place.bytes);
  const ElementRange range = writer.fragments()[index].range;
  if (place.is_master) {
    give_rounded(writer, index, range, bytes, place.dtype);
  } else {
    writer.write(index, range, bytes);
  }
}

}  // namespace unishard::trainer::detail
