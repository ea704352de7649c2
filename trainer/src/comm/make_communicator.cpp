#include "unishard/trainer/communicator.hpp"

#include "comm/backend_choice.hpp"
#include "comm/groups.hpp"
#include "comm/join_store.hpp"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <utility>

namespace unishard::trainer {

std::unique_ptr<Communicator> make_communicator(const RankEnvironment& environment,
                                                const CommunicatorOptions& options) {
  const bool has_device = has_nccl_device(environment);
  if (environment.world_size == 1) {
    auto single = make_single_communicator();
    return options.backend == Backend::Nccl
               ? detail::make_nccl_group(environment, options, std::move(single))
               : std::move(single);
  }
  const auto store = detail::join_store(environment, options);
  const Backend backend = detail::choose_backend(*store, environment.rank, environment.world_size,
                                                 options.backend, has_device);
  auto group = detail::make_gloo_communicator(
      environment, options, c10::make_intrusive<c10d::PrefixStore>("group", store));
  return backend == Backend::Nccl ? detail::make_nccl_group(environment, options, std::move(group))
                                  : std::move(group);
}

}  // namespace unishard::trainer
