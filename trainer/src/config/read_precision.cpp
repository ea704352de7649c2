#include "unishard/format/error.hpp"

#include "config/section_readers.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

namespace unishard::trainer::detail {
namespace {

/// The scale is a float32 factor of the loss.
constexpr std::int64_t kLargestPower = 127;

void read_fp16(const CheckedConfig& from, Config& config) {
  Fp16& fp16 = config.fp16;
  fp16.auto_cast = from.boolean("fp16.auto_cast");
  fp16.loss_scale = from.number("fp16.loss_scale");
  fp16.initial_scale_power = from.integer("fp16.initial_scale_power");
  fp16.loss_scale_window = from.integer("fp16.loss_scale_window");
  fp16.hysteresis = from.integer("fp16.hysteresis");
  fp16.consecutive_hysteresis = from.boolean("fp16.consecutive_hysteresis");
  fp16.min_loss_scale = from.integer("fp16.min_loss_scale");
  const double largest = std::ldexp(1.0, kLargestPower);
  if (!(fp16.loss_scale >= 0 && fp16.loss_scale <= largest))
    from.refuse("fp16.loss_scale", "0, for dynamic scaling, or a scale up to 2^127");
  if (!from.boolean("fp16.enabled")) return;
  config.compute = DType::Float16;
  if (fp16.loss_scale > 0) return;
  if (std::abs(fp16.initial_scale_power) > kLargestPower)
    from.refuse("fp16.initial_scale_power", "from -127 to 127");
  if (fp16.loss_scale_window < 1) from.refuse("fp16.loss_scale_window", "1 or more");
  if (fp16.hysteresis < 1) from.refuse("fp16.hysteresis", "1 or more");
  if (fp16.min_loss_scale < 1) from.refuse("fp16.min_loss_scale", "1 or more");
}

/// bf16 has no loss scale, so a step that is not finite ends the run unless the file asks to skip
/// it.
void read_overflow_check(const CheckedConfig& from, Config& config) {
  const auto checks = from.given_boolean("bf16.check_grad_overflow");
  if (!checks || config.compute != DType::BFloat16 || from.find("non_finite")) return;
  if (*checks) {
    config.non_finite = NonFinite::Skip;
  } else {
    config.notes.emplace_back(
        "bf16.check_grad_overflow: a step that is not finite ends the run (\"non_finite\")");
  }
}

std::string_view short_name(DType dtype) {
  if (dtype == DType::BFloat16) return "bf16";
  return dtype == DType::Float16 ? "fp16" : "fp32";
}

/// Refuses a dtype that is neither `also` nor the compute dtype.
void require_compute_dtype(const CheckedConfig& from, std::string_view path, std::string_view also,
                           const Config& config) {
  const auto name = from.given_text(path);
  const std::string_view own = short_name(config.compute);
  if (!name || *name == own || *name == also) return;
  from.refuse(path, own == "fp32" || also.empty() ? fmt::format("\"{}\"", own)
                                                  : fmt::format("\"{}\" or \"{}\"", own, also));
}

}  // namespace

void read_precision(const CheckedConfig& from, Config& config) {
  if (from.boolean("bf16.enabled")) config.compute = DType::BFloat16;
  const bool is_brain = config.compute == DType::BFloat16;
  read_fp16(from, config);
  if (is_brain && config.compute == DType::Float16) {
    raise(ErrorCode::InvalidArgument, "configuration: bf16 and fp16 are both enabled",
          "switch one of them off");
  }
  read_overflow_check(from, config);
  require_compute_dtype(from, "communication_data_type", "fp32", config);
  require_compute_dtype(from, "data_types.param_dtype", "", config);
}

}  // namespace unishard::trainer::detail
