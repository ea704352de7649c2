#pragma once
// Rotary position embedding: turns the halves of each query and key by angles that grow with the
// position.
#include "unishard/trainer/rotary_config.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace unishard::trainer::detail {

/// Returns the angle per position of each pair of numbers, [head width / 2], in fp32, for a context
/// of `time` tokens. `positions` is the model's context.
at::Tensor rotary_frequencies(const RotaryConfig& config, std::int64_t head_width,
                              std::int64_t positions, std::int64_t time);
/// Returns the factor of the turned values.
double rotary_attention_factor(const RotaryConfig& config);

/// The tables of one model, which its blocks share. They depend only on the configuration and the
/// length of a context, so no checkpoint has them. Not thread-safe.
class RotaryEmbedding {
 public:
  RotaryEmbedding(RotaryConfig config, std::int64_t head_width, std::int64_t positions)
      : config_(std::move(config)), head_width_(head_width), positions_(positions) {}

  /// Turns x [batch, heads, time, head width], whose first token has position 0.
  at::Tensor rotate(const at::Tensor& x);

 private:
  void prepare(const at::Tensor& x);

  RotaryConfig config_;
  std::int64_t head_width_, positions_;
  at::Tensor cosines_, sines_;  ///< [time, head width], as the last x needed them
};

}  // namespace unishard::trainer::detail
