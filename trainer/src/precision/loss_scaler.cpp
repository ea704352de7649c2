#include "precision/loss_scaler.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace unishard::trainer::detail {
namespace {

constexpr double kFactor = 2;
constexpr double kLargest = 0x1p127;
constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;  // exact in every JSON reader

[[noreturn]] void refuse(const char* field, const Json& value, const char* expected) {
  raise(ErrorCode::Corrupt, "loss_scaler." + std::string(field) + " is " +
                                value.dump(-1, ' ', /*ensure_ascii=*/true).substr(0, 80) +
                                ", not " + expected);
}

double scale_at(const Json& saved, double otherwise) {
  if (!saved.contains("cur_scale")) return otherwise;
  const Json& value = saved["cur_scale"];
  const double scale = value.is_number() ? value.get<double>() : 0;
  if (!(scale > 0 && scale <= kLargest)) refuse("cur_scale", value, "a scale up to 2^127");
  return scale;
}

std::int64_t count_at(const Json& saved, const char* field, std::int64_t otherwise) {
  if (!saved.contains(field)) return otherwise;
  const Json& value = saved[field];
  // Also refuses unsigned numbers beyond 2^63, which wrap.
  const std::int64_t count = value.is_number_integer() ? value.get<std::int64_t>() : -2;
  if (count < -1 || count > kMostSteps) refuse(field, value, "a count of steps");
  return count;
}

/// FP16_Optimizer of ZeRO stage 0 has another name for it.
bool is_saved_dynamic(const Json& saved) {
  for (const char* field : {"dynamic", "dynamic_loss_scale"}) {
    if (!saved.contains(field)) continue;
    if (!saved[field].is_boolean()) refuse(field, saved[field], "true or false");
    return saved[field].get<bool>();
  }
  return false;
}

}  // namespace

LossScaler::LossScaler(const Fp16& settings)
    : settings_(settings),
      scale_(settings.loss_scale > 0
                 ? settings.loss_scale
                 : std::ldexp(1.0, static_cast<int>(settings.initial_scale_power))),
      hysteresis_(settings.hysteresis) {}

void LossScaler::update(bool overflow) {
  if (!is_dynamic()) return;
  if (overflow) {
    const auto smallest = static_cast<double>(settings_.min_loss_scale);
    if (settings_.hysteresis == 1 || hysteresis_ == 1) {
      if (scale_ == smallest && settings_.raise_error_at_min_scale) {
        raise(ErrorCode::NotFinite,
              "the gradients overflow at the smallest loss scale, " +
                  std::to_string(settings_.min_loss_scale),
              "continue from a checkpoint before the losses rose, with a lower learning rate, "
              "gradient clipping or bf16");
      }
      scale_ = std::max(scale_ / kFactor, smallest);
    } else {
      --hysteresis_;
    }
    last_overflow_ = step_;
  } else {
    const std::int64_t stable = step_ - last_overflow_ - 1;
    const bool grows = stable > 0 && stable % settings_.loss_scale_window == 0;
    if (grows || settings_.consecutive_hysteresis) hysteresis_ = settings_.hysteresis;
    if (grows) scale_ = std::min(scale_ * kFactor, kLargest);
  }
  ++step_;
}

Json LossScaler::state() const {
  if (!is_dynamic()) return {{"cur_scale", scale_}, {"dynamic", false}};
  return {{"cur_scale", scale_},
          {"dynamic", true},
          {"cur_iter", step_},
          {"last_overflow_iter", last_overflow_},
          {"scale_factor", kFactor},
          {"scale_window", settings_.loss_scale_window},
          {"min_scale", settings_.min_loss_scale},
          {"delayed_shift", settings_.hysteresis},
          {"cur_hysteresis", hysteresis_},
          {"consecutive_hysteresis", settings_.consecutive_hysteresis},
          {"raise_error_at_min_scale", settings_.raise_error_at_min_scale},
          {"dtype", "torch.float16"}};
}

void LossScaler::restore(const Json& saved, std::vector<std::string>& notes) {
  if (saved.is_null()) return;
  if (!saved.is_object()) {
    raise(ErrorCode::Corrupt, "loss_scaler is not an object");
  }
  const double scale = scale_at(saved, scale_);
  if (is_saved_dynamic(saved) != is_dynamic()) {
    notes.push_back("the checkpoint's loss scale is " +
                    std::string(is_dynamic() ? "static" : "dynamic") + ", the configuration's " +
                    (is_dynamic() ? "dynamic" : "static") + " one is used");
    return;
  }
  note_other_settings(saved, notes);
  if (!is_dynamic()) return;
  const std::int64_t step = count_at(saved, "cur_iter", step_);
  const std::int64_t last_overflow = count_at(saved, "last_overflow_iter", last_overflow_);
  const std::int64_t hysteresis = count_at(saved, "cur_hysteresis", hysteresis_);
  scale_ = scale;
  step_ = step;
  last_overflow_ = last_overflow;
  hysteresis_ = std::clamp<std::int64_t>(hysteresis, 1, settings_.hysteresis);
}

void LossScaler::note_other_settings(const Json& saved, std::vector<std::string>& notes) const {
  const Json here = state();
  const auto compare = [&](const char* field, std::string_view name) {
    if (!saved.contains(field) || saved[field] == here[field]) return;
    notes.push_back(fmt::format("{} was {}, the configuration's {} is used", name,
                                saved[field].dump(), here[field].dump()));
  };
  if (!is_dynamic()) return compare("cur_scale", "fp16.loss_scale");
  // The names of the configuration, and where it has none, those of DeepSpeed's scaler.
  compare("scale_window", "fp16.loss_scale_window");
  compare("min_scale", "fp16.min_loss_scale");
  compare("delayed_shift", "fp16.hysteresis");
  compare("consecutive_hysteresis", "fp16.consecutive_hysteresis");
  compare("scale_factor", "the loss scaler's scale_factor");
  compare("raise_error_at_min_scale", "the loss scaler's raise_error_at_min_scale");
}

}  // namespace unishard::trainer::detail
