#include "checkpoint/staging.hpp"

#include "unishard/format/error.hpp"

#include "checkpoint/in_parallel.hpp"
#include "checkpoint/stream_copy.hpp"
#include "device/device_copies.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

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
  const PinnedBuffers::Loan buffer = buffers.lend();
  const std::uint64_t most = buffer.bytes().size() / c10::elementSize(tensor.stored);
  give_parts(tensor, most, [&](const LocalTensor& part) {
    const at::Tensor values = part.on_device.to(part.stored);
    const std::span<std::byte> bytes = buffer.bytes().first(values.nbytes());
    DeviceCopies copies;
    copies.start(bytes, values);
    copies.wait();
    writer.write(index, part.held, bytes);
  });
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

void Staging::reserve(std::uint64_t bytes) {
  if (bytes <= capacity_bytes()) return;
  pinned_.reset();
  memory_ = {};  // frees the old memory before the larger is allocated
  memory_ = HugeBuffer(round_up_to(bytes, kHugePage));
  in_parallel(capacity_bytes() / kHugePage, [&](std::size_t index) {
    volatile std::byte* const begin = memory_.bytes().data() + index * kHugePage;
    for (std::uint64_t at = 0; at < kHugePage; at += kPage) begin[at] = std::byte{0};
  });
  if (!device_.is_cpu()) pinned_.emplace(memory_.bytes(), device_);
}

void Staging::capture(const LocalState& local, const Catalog& catalog,
                      const std::vector<Fragment>& fragments) {
  plan_ = plan_staging(local, catalog, fragments);
  reserve(plan_.bytes);
  in_files_ = keep_in_files(local, catalog, fragments);
  std::vector<LocalTensor> located(fragments.size());
  for (std::size_t f = 0; f < fragments.size(); ++f) {  // may round on the device
    if (plan_.places[f].is_master || plan_.places[f].is_in_file) continue;
    located[f] = locate(local, catalog, fragments[f]);
    if (located[f].on_device.defined())
      located[f].on_device = located[f].on_device.to(located[f].stored);
  }
  std::vector<Piece> pieces;
  DeviceCopies copies;  // beside those of the threads
  for (std::size_t f = 0; f < fragments.size(); ++f) {
    if (plan_.places[f].is_master || plan_.places[f].is_in_file) continue;
    const std::span<std::byte> place =
        memory_.bytes().subspan(plan_.places[f].offset, plan_.places[f].bytes);
    if (located[f].on_device.defined()) {
      copies.start(place, located[f].on_device);
    } else {
      cut(place.data(), located[f].bytes, pieces);
    }
  }
  in_parallel(pieces.size(),
              [&](std::size_t index) { stream_copy(pieces[index].to, pieces[index].from); });
  copies.wait();
}

void Staging::give(ShardWriter& writer, std::size_t index) const {
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
