#include "unishard/trainer/batch_plan.hpp"

#include "unishard/format/error.hpp"

#include <string>

namespace unishard::trainer {
namespace {

constexpr const char* kTrain = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";

void require_positive(const char* key, const std::optional<std::int64_t>& value) {
  if (value && *value < 1) {
    raise(ErrorCode::InvalidArgument,
          std::string(key) + " is " + std::to_string(*value) + ", not positive");
  }
}

[[noreturn]] void refuse(std::int64_t train, std::int64_t micro, std::int64_t accumulation,
                         std::int64_t world) {
  raise(ErrorCode::InvalidArgument,
        std::string(kTrain) + " " + std::to_string(train) + " is not " + kMicro + " " +
            std::to_string(micro) + " * " + kAccumulation + " " + std::to_string(accumulation) +
            " * world size " + std::to_string(world),
        std::string("give ") + kTrain + " and " + kMicro + " only: any world size then works");
}

}  // namespace

BatchPlan plan_batch(const BatchRequest& request, std::uint32_t world_size) {
  require_positive(kTrain, request.train);
  require_positive(kMicro, request.micro);
  require_positive(kAccumulation, request.accumulation);
  const std::int64_t world = world_size;
  if (!request.train && !request.micro) {
    raise(ErrorCode::InvalidArgument,
          std::string("neither ") + kTrain + " nor " + kMicro + " is given");
  }
  BatchPlan plan;
  if (request.train && request.micro && !request.accumulation) {
    if (*request.train % *request.micro != 0) refuse(*request.train, *request.micro, 1, world);
    plan.global_micro_batches = *request.train / *request.micro;
    plan.accumulation = (plan.global_micro_batches + world - 1) / world;
    plan.train = *request.train;
    plan.micro = *request.micro;
    return plan;
  }
  plan.accumulation = request.accumulation.value_or(1);
  plan.micro = request.micro ? *request.micro : *request.train / world / plan.accumulation;
  plan.train = request.train ? *request.train : plan.micro * plan.accumulation * world;
  if (plan.micro < 1 || plan.train != plan.micro * plan.accumulation * world) {
    refuse(plan.train, plan.micro, plan.accumulation, world);
  }
  plan.global_micro_batches = plan.train / plan.micro;
  return plan;
}

}  // namespace unishard::trainer
