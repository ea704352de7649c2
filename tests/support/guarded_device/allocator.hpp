#pragma once
#include <c10/core/Allocator.h>

namespace unishard::test::guarded {

/// Allocates on the current device and stream of the calling thread.
c10::Allocator* allocator();
/// Does the same, for an operation that messages name.
c10::DataPtr allocate(std::size_t bytes, const char* born);

}  // namespace unishard::test::guarded
