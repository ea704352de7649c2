#pragma once
// Compares copies: of tensors that several files hold.
// Thread safety: pure functions.
#include "unishard/format/storage.hpp"

#include "containers/tensor_view.hpp"

namespace unishard::converters {

/// Returns whether two ranges of files have the same bytes. Reads both in bounded memory.
bool equal_bytes(const File& a, std::uint64_t a_begin, const File& b, std::uint64_t b_begin,
                 std::uint64_t bytes);

/// Returns whether two tensors have the same type, shape and elements, bit by bit. Where both lie
/// in the same way in storages that archives have checksums of, the checksums decide; else both are
/// read in bounded memory.
bool equal_elements(const torch::TensorView& a, const torch::TensorView& b);

}  // namespace unishard::converters
