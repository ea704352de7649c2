#include "config/precision.hpp"

#include "unishard/format/error.hpp"

#include "config/key_tables.hpp"

#include <cmath>
#include <cstdlib>

namespace unishard::trainer::detail {
namespace {

/// The scale is a float32 factor of the loss.
constexpr std::int64_t kLargestPower = 127;

void read_fp16(const Json& section, Config& config) {
  const ObjectReader reader(section, "fp16", kFp16Keys, config.notes);
  Fp16& fp16 = config.fp16;
  fp16.auto_cast = reader.boolean("auto_cast").value_or(fp16.auto_cast);
  fp16.loss_scale = reader.number("loss_scale").value_or(fp16.loss_scale);
  fp16.initial_scale_power =
      reader.integer("initial_scale_power").value_or(fp16.initial_scale_power);
  fp16.loss_scale_window = reader.integer("loss_scale_window").value_or(fp16.loss_scale_window);
  fp16.hysteresis = reader.integer("hysteresis").value_or(fp16.hysteresis);
  fp16.consecutive_hysteresis =
      reader.boolean("consecutive_hysteresis").value_or(fp16.consecutive_hysteresis);
  fp16.min_loss_scale = reader.integer("min_loss_scale").value_or(fp16.min_loss_scale);
  const double largest = std::ldexp(1.0, kLargestPower);
  if (!(fp16.loss_scale >= 0 && fp16.loss_scale <= largest))
    reader.refuse("loss_scale", "0, for dynamic scaling, or a scale up to 2^127");
  if (!reader.boolean("enabled").value_or(false)) return;
  config.compute = DType::Float16;
  if (fp16.loss_scale > 0) return;
  if (std::abs(fp16.initial_scale_power) > kLargestPower)
    reader.refuse("initial_scale_power", "from -127 to 127");
  if (fp16.loss_scale_window < 1) reader.refuse("loss_scale_window", "1 or more");
  if (fp16.hysteresis < 1) reader.refuse("hysteresis", "1 or more");
  if (fp16.min_loss_scale < 1) reader.refuse("min_loss_scale", "1 or more");
}

}  // namespace

void read_precision(const ObjectReader& top, Config& config) {
  for (const char* name : {"bf16", "bfloat16"}) {
    const Json* section = top.find(name);
    if (!section) continue;
    const ObjectReader reader(*section, name, kBf16Keys, config.notes);
    if (reader.boolean("enabled").value_or(false)) config.compute = DType::BFloat16;
  }
  const bool brain = config.compute == DType::BFloat16;
  if (const Json* section = top.find("fp16")) read_fp16(*section, config);
  if (brain && config.compute == DType::Float16) {
    raise(ErrorCode::InvalidArgument, "configuration: bf16 and fp16 are both enabled",
          "switch one of them off");
  }
}

}  // namespace unishard::trainer::detail
