#pragma once
// What the build that this program is from has found. The program itself links none of it.
#include <string_view>

namespace unishard::tools {

struct BuildInfo {
  std::string_view libtorch;  ///< version that the trainer was built with; empty: no trainer
  std::string_view cuda;      ///< CUDA toolkit of the trainer's kernels; empty: none
  bool has_nccl;              ///< the trainer has the NCCL communicator
};

BuildInfo build_info();

}  // namespace unishard::tools
