#pragma once
// Compares elements: of copies of tensors that several files hold, and of one tensor.
// Thread safety: pure functions.
#include "unishard/format/storage.hpp"

#include "containers/tensor_view.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace unishard::converters {

/// Returns whether two ranges of files have the same bytes. Reads both in bounded memory.
bool equal_bytes(const File& a, std::uint64_t a_begin, const File& b, std::uint64_t b_begin,
                 std::uint64_t bytes);

/// Returns whether two tensors have the same type, shape and elements, bit by bit. Where both lie
/// in the same way in storages that archives have checksums of, the checksums decide; else both are
/// read in bounded memory.
bool equal_elements(const torch::TensorView& a, const torch::TensorView& b);

/// Returns the bytes of elements [first, first + count), which are looked at and not copied.
/// Pre: the view has these elements.
std::vector<std::byte> sampled_bytes(const torch::TensorView& view, std::uint64_t first,
                                     std::uint64_t count);

/// Returns whether all elements are equal. Pre: there are some, in the files.
bool has_one_value(const torch::TensorView& view);

}  // namespace unishard::converters
