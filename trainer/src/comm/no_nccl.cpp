// Replaces nccl_group.cpp and nccl_handle.cpp when configure found no NCCL or no CUDA toolkit.
#include "unishard/format/error.hpp"
#include "unishard/trainer/communicator.hpp"

#include "comm/groups.hpp"

namespace unishard::trainer {

bool has_nccl_device(const RankEnvironment&) { return false; }

std::unique_ptr<Communicator> detail::make_nccl_group(const RankEnvironment&,
                                                      const CommunicatorOptions&,
                                                      std::unique_ptr<Communicator>) {
  raise(ErrorCode::Unsupported, "this build has no NCCL",
        "configure with NCCL and the CUDA toolkit installed and -DUNISHARD_WITH_NCCL=ON");
}

}  // namespace unishard::trainer
