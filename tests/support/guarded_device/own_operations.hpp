#pragma once
// The operations that the CPU's kernels cannot perform for the device: to make tensors, to copy
// between memories, and to exchange storages.
#include <torch/library.h>

#include <set>
#include <string>

namespace unishard::test::guarded {

/// Returns the names of the operations, without "aten::".
std::set<std::string> register_own_operations(torch::Library& aten);

}  // namespace unishard::test::guarded
