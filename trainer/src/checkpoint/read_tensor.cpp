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

/// Gives a flat tensor on a device its values through pinned memory, piece by piece: calls `fill`
/// with the first element, the piece, and the memory that gets its values.
template <class Fill>
void send_pieces(const at::Tensor& to, PinnedBuffers& buffers, const Fill& fill) {
  const auto most =
      static_cast<std::int64_t>(PinnedBuffers::kBytes / c10::elementSize(to.scalar_type()));
  PinnedBuffers::Loan buffer = buffers.lend();
  for (std::int64_t begin = 0; begin < to.numel(); begin += most) {
    const at::Tensor piece = to.narrow(0, begin, std::min(most, to.numel() - begin));
    fill(begin, piece, buffer.memory(piece.nbytes()));
    buffer.send(piece);
  }
}

/// Reads what has the same type in the file, in a checkpoint and on the device: from the file into
/// the pinned memory.
void read_to_device(const converters::Source& reader, std::size_t saved, const LocalTensor& into,
                    PinnedBuffers& buffers) {
  const auto read = [&](std::int64_t at, const at::Tensor& piece, std::span<std::byte> memory) {
    const std::uint64_t begin = into.held.begin + static_cast<std::uint64_t>(at);
    reader.read(saved, {begin, begin + static_cast<std::uint64_t>(piece.numel())}, memory);
  };
  send_pieces(into.on_device, buffers, read);
}

/// Gives a flat tensor of the host to a device.
void send(const at::Tensor& host, const at::Tensor& to, PinnedBuffers& buffers) {
  const auto convert = [&](std::int64_t at, const at::Tensor& piece, std::span<std::byte> memory) {
    copy_to(memory, host.narrow(0, at, piece.numel()).to(to.scalar_type()).contiguous());
  };
  send_pieces(to, buffers, convert);
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
