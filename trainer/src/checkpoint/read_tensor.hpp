#pragma once
// From a checkpoint's tensor to this rank's part of it, whatever its type and layout in the file.
#include "unishard/converters/source.hpp"

#include "checkpoint/foreign_view.hpp"
#include "checkpoint/local_state.hpp"

namespace unishard::trainer::detail {

/// Reads no more than `into.held`; of a matrix that the file has as its transpose, all of it.
void read_tensor(const converters::Source& reader, const ForeignView::Place& place, DType wanted,
                 const LocalTensor& into);

/// Throws Mismatch when two tensors of the file that are one here differ in `held`.
void require_equal(const converters::Source& reader, const ForeignView::Copy& copy,
                   ElementRange held);

}  // namespace unishard::trainer::detail
