#pragma once
#include <cstdlib>

namespace unishard::trainer::detail {

/// Makes cuBLAS deterministic, which it reads from the environment before its first operation. No
/// effect if the user has chosen a workspace.
inline void choose_deterministic_cublas() {
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
}

}  // namespace unishard::trainer::detail
