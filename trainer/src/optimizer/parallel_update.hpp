#pragma once
#include "optimizer/update_arrays.hpp"

namespace unishard::trainer::detail {

/// Updates arrays in host memory from the threads of LibTorch's pool. The bits do not depend on
/// how many there are.
void update_in_parallel(const Rule& rule, const UpdateArrays& arrays);

}  // namespace unishard::trainer::detail
