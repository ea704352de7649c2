#include "device.hpp"

#include "unishard/format/error.hpp"
#include "unishard/trainer/agree.hpp"

namespace train_gpt {

using namespace unishard;
using namespace unishard::trainer;

Backend backend_of(const Options& options) {
  if (options.device != DeviceChoice::Cpu) return options.backend;
  if (options.backend == Backend::Nccl) {
    raise(ErrorCode::InvalidArgument, "--backend nccl works between CUDA devices",
          "add --device cuda, or use --backend gloo");
  }
  return Backend::Gloo;
}

std::unique_ptr<Runtime> make_runtime(const Options& options, const RankEnvironment& environment,
                                      Communicator& communicator, Trace* trace) {
  const bool has_none = options.device == DeviceChoice::Cpu || cuda_devices() == 0;
  const bool some_have_none = agree_max(communicator, has_none) != 0;
  const bool on_host = options.device == DeviceChoice::Cpu ||
                       (options.device == DeviceChoice::Auto && some_have_none);
  std::unique_ptr<Runtime> runtime;
  agree(communicator, "taking a device", [&] {
    runtime =
        on_host
            ? make_host_runtime({.trace = trace})
            : make_cuda_runtime({.device = cuda_device_of(environment.local_rank), .trace = trace});
  });
  return runtime;
}

}  // namespace train_gpt
