#pragma once
#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>

namespace unishard::test::guarded {

/// Allocates on the current device and stream of the calling thread.
c10::Allocator* allocator();
/// Does the same, for an operation that messages name.
c10::DataPtr allocate(std::size_t bytes, const char* born);
/// Returns the bytes that tensors of all devices have.
std::int64_t bytes_in_tensors();

}  // namespace unishard::test::guarded
