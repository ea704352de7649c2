#include "checkpoint/read_tensor.hpp"

#include "unishard/format/error.hpp"

#include "device/tensor_bytes.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace unishard::trainer::detail {
namespace {

constexpr std::uint64_t kBlockBytes = std::uint64_t{4} << 20;

/// Reads elements `held` of the transpose of a matrix in the file.
at::Tensor read_transposed(const converters::Source& reader, std::size_t saved, ElementRange held) {
  const TensorInfo& tensor = reader.catalog().tensors[saved];
  const at::Tensor whole = at::empty(
      {static_cast<std::int64_t>(tensor.shape[0]), static_cast<std::int64_t>(tensor.shape[1])},
      scalar_type(tensor.dtype));
  reader.read(saved, {0, tensor.elements()}, bytes_of(whole));
  return whole.t().reshape({-1}).narrow(0, static_cast<std::int64_t>(held.begin),
                                        static_cast<std::int64_t>(held.size()));
}

/// Reads elements `held` into `to`.
void read_to_host(const converters::Source& reader, const ForeignView::Place& place, DType wanted,
                  ElementRange held, std::span<std::byte> to) {
  const DType dtype = reader.catalog().tensors[place.tensor].dtype;
  if (dtype == wanted && !place.transposed) {
    reader.read(place.tensor, held, to);
    return;
  }
  at::Tensor values;
  if (place.transposed) {
    values = read_transposed(reader, place.tensor, held);
  } else {
    values = at::empty({static_cast<std::int64_t>(held.size())}, scalar_type(dtype));
    reader.read(place.tensor, held, bytes_of(values));
  }
  copy_to(to, values.to(scalar_type(wanted)).contiguous());
}

at::Tensor read_to_host(const converters::Source& reader, const ForeignView::Place& place,
                        DType wanted, ElementRange held) {
  at::Tensor host = at::empty({static_cast<std::int64_t>(held.size())},
                              at::device(at::kCPU).dtype(scalar_type(wanted)));
  read_to_host(reader, place, wanted, held, bytes_of(host));
  return host;
}

/// Reads what has the same type in the file, in a checkpoint and on the device: from the file into
/// pinned memory, and from there to the device.
void read_to_device(const converters::Source& reader, std::size_t saved, const LocalTensor& into,
                    PinnedBuffers& buffers) {
  const std::size_t element = c10::elementSize(into.on_device.scalar_type());
  PinnedBuffers::Loan buffer = buffers.lend();
  for (std::uint64_t begin = into.held.begin; begin < into.held.end;) {
    const std::uint64_t end =
        std::min<std::uint64_t>(into.held.end, begin + PinnedBuffers::kBytes / element);
    reader.read(saved, {begin, end}, buffer.memory((end - begin) * element));
    buffer.send(into.part({begin, end}).on_device);
    begin = end;
  }
}

/// Gives a flat tensor of the host to a device through pinned memory.
void send(const at::Tensor& host, const at::Tensor& to, PinnedBuffers& buffers) {
  const auto most =
      static_cast<std::int64_t>(PinnedBuffers::kBytes / c10::elementSize(to.scalar_type()));
  PinnedBuffers::Loan buffer = buffers.lend();
  for (std::int64_t begin = 0; begin < host.numel(); begin += most) {
    const std::int64_t count = std::min(most, host.numel() - begin);
    const at::Tensor part = to.narrow(0, begin, count);
    copy_to(buffer.memory(part.nbytes()),
            host.narrow(0, begin, count).to(to.scalar_type()).contiguous());
    buffer.send(part);
  }
}

}  // namespace

at::Device device_of(const std::vector<WantedPart>& parts) {
  for (const WantedPart& part : parts)
    if (part.to.on_device.defined() && !part.to.on_device.is_cpu())
      return part.to.on_device.device();
  return at::kCPU;
}

void read_tensor(const converters::Source& reader, const ForeignView::Place& place, DType wanted,
                 const LocalTensor& into, PinnedBuffers& buffers) {
  if (into.held.empty()) return;
  const at::Tensor& on_device = into.on_device;
  if (!on_device.defined() && !into.in_file.defined())
    return read_to_host(reader, place, wanted, into.held, into.bytes);
  const bool is_same = on_device.defined() && on_device.scalar_type() == scalar_type(wanted) &&
                       reader.catalog().tensors[place.tensor].dtype == wanted && !place.transposed;
  if (is_same && !on_device.is_cpu()) return read_to_device(reader, place.tensor, into, buffers);
  const at::Tensor host = read_to_host(reader, place, wanted, into.held);
  if (into.in_file.defined()) {
    into.in_file.write(into.first, host);
  } else if (on_device.is_cpu()) {
    on_device.copy_(host);
  } else {
    send(host, on_device, buffers);
  }
}

void require_equal(const converters::Source& reader, const ForeignView::Copy& copy,
                   ElementRange held) {
  const TensorInfo& tensor = reader.catalog().tensors[copy.tensor];
  const std::uint64_t block = std::max<std::uint64_t>(kBlockBytes / size_of(tensor.dtype), 1);
  std::vector<std::byte> mine, other;
  for (std::uint64_t begin = held.begin; begin < held.end; begin += block) {
    const ElementRange range{begin, std::min(begin + block, held.end)};
    mine.resize(range.size() * size_of(tensor.dtype));
    other.resize(mine.size());
    reader.read(copy.tensor, range, mine);
    reader.read(copy.of, range, other);
    if (mine == other) continue;
    const TensorInfo& first = reader.catalog().tensors[copy.of];
    raise(ErrorCode::Mismatch,
          first.label() + " and " + tensor.label() +
              " are one tensor in this model, and differ in the checkpoint",
          "the checkpoint's model does not tie them");
  }
}

}  // namespace unishard::trainer::detail
