#include "unishard/trainer/communicator.hpp"

namespace unishard::trainer {

std::unique_ptr<Communicator> make_communicator(const RankEnvironment& environment,
                                                const CommunicatorOptions& options) {
  const bool nccl = options.backend == Backend::Nccl ||
                    (options.backend == Backend::Auto && has_nccl_device(environment));
  if (nccl) return make_nccl_communicator(environment, options);
  if (environment.world_size == 1) return make_single_communicator();
  return make_gloo_communicator(environment, options);
}

}  // namespace unishard::trainer
