#pragma once
// Reads this rank's part of a checkpoint's tensor, whatever its type and layout in the file.
#include "unishard/converters/source.hpp"

#include "checkpoint/foreign_view.hpp"
#include "checkpoint/local_state.hpp"

namespace unishard::trainer::detail {

/// A range of one tensor that a load reads, and its destination.
struct WantedPart {
  const ForeignView::Place* place;
  DType dtype;
  LocalTensor to;
};

/// Reads `into.held` into `into`, converted to `wanted`. Reads no other elements, except that a
/// matrix that the file stores transposed is read whole.
void read_tensor(const converters::Source& reader, const ForeignView::Place& place, DType wanted,
                 const LocalTensor& into);

/// Throws Mismatch when two tensors of the file that are one in the model differ in `held`.
void require_equal(const converters::Source& reader, const ForeignView::Copy& copy,
                   ElementRange held);

}  // namespace unishard::trainer::detail
