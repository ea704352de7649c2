#include "state/state_array.hpp"

#include "device/tensor_bytes.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <map>
#include <mutex>
#include <tuple>
#include <utility>

namespace unishard::trainer::detail {
namespace {

/// Returns what those who ask with the same key share as long as any of them has it.
template <class Shared, class Make, class... Key>
std::shared_ptr<Shared> share(const Make& make, const Key&... key) {
  static std::mutex mutex;
  static std::map<std::tuple<Key...>, std::weak_ptr<Shared>> all;
  const std::lock_guard lock(mutex);
  std::weak_ptr<Shared>& known = all[{key...}];
  std::shared_ptr<Shared> shared = known.lock();
  if (!shared) known = shared = make();
  return shared;
}

/// Returns the file of a rank in a folder, which all of its units share.
std::shared_ptr<BlockFile> shared_file(const Path& folder, std::uint32_t rank,
                                       std::uint64_t block_bytes, std::size_t threads) {
  return share<BlockFile>(
      [&] { return BlockFile::make(posix_storage(), folder, block_bytes, threads); }, folder, rank,
      block_bytes, threads);
}

/// Returns the way of a rank's files to its device, which all of its units share.
std::shared_ptr<FileCopies> shared_copies(at::Device device, std::uint32_t rank) {
  if (device.is_cpu()) return nullptr;
  return share<FileCopies>([&] { return std::make_shared<FileCopies>(device); }, device.str(),
                           rank);
}

std::uint64_t width_of(at::ScalarType type) { return c10::elementSize(type); }

}  // namespace

StateArray::StateArray(std::shared_ptr<BlockFile> file, std::shared_ptr<FileCopies> copies,
                       std::int64_t elements, at::ScalarType type)
    : file_(std::make_shared<FileArray>(std::move(file),
                                        static_cast<std::uint64_t>(elements) * width_of(type))),
      copies_(std::move(copies)),
      elements_(elements),
      type_(type) {}

StateArray StateArray::pinned(std::int64_t elements, at::ScalarType type, at::Device device) {
  StateArray result;
  result.pinned_ = std::make_shared<Pinned>();
  at::Tensor& values = result.pinned_->values;
  values = at::zeros({elements}, at::device(at::kCPU).dtype(type));
  if (elements > 0)
    result.pinned_->memory = std::make_unique<PinnedMemory>(bytes_of(values), device);
  return result;
}

std::int64_t StateArray::bytes_in_memory() const {
  return tensor().defined() ? static_cast<std::int64_t>(tensor().nbytes()) : 0;
}

std::int64_t StateArray::bytes_in_file() const {
  return file_ ? static_cast<std::int64_t>(file_->bytes()) : 0;
}

at::Tensor StateArray::values(std::int64_t begin, std::int64_t count) const {
  if (!file_) return tensor().narrow(0, begin, count);
  at::Tensor copy = at::empty({count}, at::device(at::kCPU).dtype(type_));
  read(begin, copy);
  return copy;
}

at::Tensor StateArray::on(at::Device device) const {
  if (!copies_ || device.is_cpu())
    return values().to(device, type(), /*non_blocking=*/!is_in_file());
  const at::Tensor copy = at::empty({elements_}, at::device(device).dtype(type_));
  copies_->read(*file_, copy);
  return copy;
}

void StateArray::read(std::int64_t begin, const at::Tensor& into) const {
  file_->read(static_cast<std::uint64_t>(begin) * width_of(type_), bytes_of(into));
}

void StateArray::write(std::int64_t begin, const at::Tensor& values) const {
  const at::NoGradGuard no_grad;
  if (!file_) {
    tensor().narrow(0, begin, values.numel()).copy_(values);
    return;
  }
  const at::Tensor own = values.to(type_).contiguous();
  const std::uint64_t offset = static_cast<std::uint64_t>(begin) * width_of(type_);
  if (own.is_cpu()) {
    file_->write(offset, bytes_of(own));
  } else {
    copies_->write(*file_, offset, own);
  }
}

StateArray StateArray::snapshot() const {
  StateArray copy = *this;
  copy.file_ = file_->snapshot();
  return copy;
}

void StateArray::take(const StateArray& other) const {
  if (file_) return file_->take(*other.file_);
  std::swap(*pinned_, *other.pinned_);
}

StatePlaces::StatePlaces(const Placement& placement, Residence optimizer, Residence parameters)
    : device_(placement.device),
      optimizer_(place(optimizer, placement.offload_optimizer.nvme_path, placement)),
      parameters_(place(parameters, placement.offload_param.nvme_path, placement)) {}

/// The host's memory is the device's where the model computes on the host.
StatePlaces::Place StatePlaces::place(Residence residence, const std::string& folder,
                                      const Placement& placement) {
  if (residence == Residence::Host && placement.device.is_cpu()) residence = Residence::Device;
  if (residence != Residence::File)
    return {.residence = residence, .file = nullptr, .copies = nullptr};
  return {.residence = residence,
          .file = shared_file(folder, placement.rank,
                              static_cast<std::uint64_t>(placement.aio.block_size),
                              static_cast<std::size_t>(placement.aio.threads)),
          .copies = shared_copies(placement.device, placement.rank)};
}

StateArray StatePlaces::make(const Place& place, std::int64_t elements, at::ScalarType type) const {
  if (place.residence == Residence::File) return {place.file, place.copies, elements, type};
  if (place.residence == Residence::Host) return StateArray::pinned(elements, type, device_);
  return StateArray(at::zeros({elements}, at::device(device_).dtype(type)));
}

}  // namespace unishard::trainer::detail
