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

}  // namespace

void read_tensor(const converters::Source& reader, const ForeignView::Place& place, DType wanted,
                 const LocalTensor& into) {
  if (into.held.empty()) return;
  if (into.on_device.defined() || into.in_file.defined()) {
    const at::Tensor host = at::empty({static_cast<std::int64_t>(into.held.size())},
                                      at::device(at::kCPU).dtype(scalar_type(wanted)));
    read_tensor(reader, place, wanted, {.held = into.held, .bytes = bytes_of(host), .keep = host});
    if (into.in_file.defined()) return into.in_file.write(into.first, host);
    into.on_device.copy_(host);
    return;
  }
  const DType dtype = reader.catalog().tensors[place.tensor].dtype;
  if (dtype == wanted && !place.transposed) {
    reader.read(place.tensor, into.held, into.bytes);
    return;
  }
  at::Tensor values;
  if (place.transposed) {
    values = read_transposed(reader, place.tensor, into.held);
  } else {
    values = at::empty({static_cast<std::int64_t>(into.held.size())}, scalar_type(dtype));
    reader.read(place.tensor, into.held, bytes_of(values));
  }
  copy_to(into.bytes, values.to(scalar_type(wanted)).contiguous());
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
