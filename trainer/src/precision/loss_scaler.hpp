#pragma once
// The loss scale of fp16 training by DeepSpeed's rules, as a state machine without tensors. Ranks
// that agree on the overflow of each step hold equal scalers.
#include "unishard/format/json.hpp"
#include "unishard/trainer/config.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace unishard::trainer::detail {

/// Not thread-safe.
class LossScaler {
 public:
  /// Begins at 2^initial_scale_power; a `loss_scale` above 0 is kept for ever.
  explicit LossScaler(const Fp16& settings);

  /// Returns the factor of the loss, which the gradients are divided by.
  double scale() const { return scale_; }
  bool is_dynamic() const { return settings_.loss_scale == 0; }

  /// Ends a step. The `hysteresis`-th overflow, and each one after it, halves the scale;
  /// `loss_scale_window` steps without one double it and, like each step without one if
  /// `consecutive_hysteresis` is set, begin the count of overflows anew.
  /// Throws: NotFinite when the smallest scale overflows; the scaler is as before.
  /// Source: DynamicLossScaler.update_scale of DeepSpeed 0.19. Unlike there, the scale ends at
  /// 2^127, because an infinite one could never fall again.
  void update(bool overflow);

  /// Returns the fields of DeepSpeed's LossScaler or DynamicLossScaler, as Catalog::loss_scaler
  /// holds them.
  Json state() const;

  /// Continues from the scale and counters of `saved`, a Catalog::loss_scaler, which may lack
  /// fields. The settings stay this object's. What is not taken over becomes a note.
  /// Throws: Corrupt, naming the field.
  void restore(const Json& saved, std::vector<std::string>& notes);

 private:
  void note_other_settings(const Json& saved, std::vector<std::string>& notes) const;

  Fp16 settings_;
  double scale_;
  std::int64_t step_ = 0;
  std::int64_t last_overflow_ = -1;
  std::int64_t hysteresis_;  ///< overflows until the scale falls, this one included
};

}  // namespace unishard::trainer::detail
