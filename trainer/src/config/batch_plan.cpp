#include "unishard/trainer/batch_plan.hpp"

#include "unishard/format/error.hpp"

#include <string>

namespace unishard::trainer {
namespace {

constexpr const char* kTrain = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";
constexpr std::int64_t kBatchMax = std::int64_t{1} << 31;

void require_in_range(const char* key, const std::optional<std::int64_t>& value) {
  if (!value || (*value >= 1 && *value <= kBatchMax)) return;
  raise(ErrorCode::InvalidArgument, std::string(key) + " is " + std::to_string(*value) +
                                        ", not from 1 to " + std::to_string(kBatchMax));
}

std::string product_text(std::int64_t micro, std::int64_t accumulation, std::int64_t world) {
  return std::string(kMicro) + " " + std::to_string(micro) + " * " + kAccumulation + " " +
         std::to_string(accumulation) + " * world size " + std::to_string(world);
}

[[noreturn]] void refuse(std::int64_t train, std::int64_t micro, std::int64_t accumulation,
                         std::int64_t world) {
  raise(ErrorCode::InvalidArgument,
        std::string(kTrain) + " " + std::to_string(train) + " is not " +
            product_text(micro, accumulation, world),
        std::string("give ") + kTrain + " and a " + kMicro +
            " that divides it only: any world size then works");
}

}  // namespace

void require_possible_batch(const BatchRequest& request) {
  require_in_range(kTrain, request.train);
  require_in_range(kMicro, request.micro);
  require_in_range(kAccumulation, request.accumulation);
  if (!request.train || !request.micro) return;
  const std::int64_t accumulation = request.accumulation.value_or(1);
  if (*request.micro <= *request.train / accumulation &&
      *request.train % (*request.micro * accumulation) == 0)
    return;
  const std::string factor =
      request.accumulation ? std::string(" * ") + kAccumulation + " " + std::to_string(accumulation)
                           : std::string();
  raise(ErrorCode::InvalidArgument,
        std::string(kTrain) + " " + std::to_string(*request.train) + " is no multiple of " +
            kMicro + " " + std::to_string(*request.micro) + factor,
        std::string("a step consists of whole micro-batches; change one of them"));
}

BatchPlan plan_batch(const BatchRequest& request, std::uint32_t world_size) {
  require_possible_batch(request);
  const std::int64_t world = world_size;
  if (!request.train && !request.micro) {
    raise(ErrorCode::InvalidArgument,
          std::string("neither ") + kTrain + " nor " + kMicro + " is given");
  }
  BatchPlan plan;
  if (request.train && request.micro && !request.accumulation) {
    plan.global_micro_batches = *request.train / *request.micro;
    plan.accumulation = (plan.global_micro_batches + world - 1) / world;
    plan.train = *request.train;
    plan.micro = *request.micro;
    return plan;
  }
  plan.accumulation = request.accumulation.value_or(1);
  plan.micro = request.micro ? *request.micro : *request.train / world / plan.accumulation;
  // The product can pass 2^63, the quotients cannot.
  const std::int64_t per_rank_max = kBatchMax / world;
  const bool fits = plan.micro <= per_rank_max / plan.accumulation;
  if (!fits && !request.train) {
    raise(ErrorCode::InvalidArgument, product_text(plan.micro, plan.accumulation, world) +
                                          " is more than " + std::to_string(kBatchMax));
  }
  const std::int64_t product = fits ? plan.micro * plan.accumulation * world : kBatchMax;
  plan.train = request.train ? *request.train : product;
  if (plan.micro < 1 || !fits || plan.train != product) {
    refuse(plan.train, plan.micro, plan.accumulation, world);
  }
  plan.global_micro_batches = plan.train / plan.micro;
  return plan;
}

}  // namespace unishard::trainer
