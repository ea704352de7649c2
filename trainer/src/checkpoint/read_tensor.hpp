#pragma once
// Reads this rank's part of a checkpoint's tensor, whatever its type and layout in the file.
#include "unishard/converters/source.hpp"

#include "checkpoint/foreign_view.hpp"
#include "checkpoint/local_state.hpp"
#include "device/pinned_buffers.hpp"

#include <vector>

namespace unishard::trainer::detail {

/// A range of one tensor that a load reads, and its destination.
struct WantedPart {
  const ForeignView::Place* place;
  DType dtype;
  LocalTensor to;
};

/// Reads `into.held` into `into`, converted to `wanted`. Reads no other elements, except that a
/// matrix that the file stores transposed is read whole. What is on a device goes there through
/// `buffers`, which are of that device.
void read_tensor(const converters::Source& reader, const ForeignView::Place& place, DType wanted,
                 const LocalTensor& into, PinnedBuffers& buffers);

/// Returns the device that some of the parts are on; the CPU if none is.
at::Device device_of(const std::vector<WantedPart>& parts);

/// Throws Mismatch when two tensors of the file that are one in the model differ in `held`.
void require_equal(const converters::Source& reader, const ForeignView::Copy& copy,
                   ElementRange held);

}  // namespace unishard::trainer::detail
