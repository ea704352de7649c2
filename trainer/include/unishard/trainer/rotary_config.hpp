#pragma once
// How positions turn queries and keys (rotary position embedding), with the scaling variants of
// transformers' configurations. The formulas are those of transformers 5.
// Thread safety: a value.
#include <cstdint>
#include <optional>
#include <vector>

namespace unishard::trainer {

enum class RotaryScaling : std::uint8_t { Default, Linear, Dynamic, Yarn, LongRope, Llama3 };

struct RotaryConfig {
  RotaryScaling scaling = RotaryScaling::Default;
  double theta = 10000;  ///< base of the frequencies
  double factor = 1;     ///< all variants but Default
  /// Yarn, LongRope and Llama3: the context before it was extended.
  std::int64_t original_positions = 0;
  /// Yarn and LongRope: multiplies the turned values; nullopt: derived from `factor`.
  std::optional<double> attention_factor{};
  double beta_fast = 32, beta_slow = 1;   ///< Yarn
  double mscale = 0, mscale_all_dim = 0;  ///< Yarn; 0: not given
  bool truncate = true;                   ///< Yarn
  double low_frequency_factor = 1;        ///< Llama3
  double high_frequency_factor = 4;       ///< Llama3
  std::vector<double> short_factor{};     ///< LongRope: one for each frequency
  std::vector<double> long_factor{};      ///< LongRope, for contexts over original_positions
  bool operator==(const RotaryConfig&) const = default;
};

}  // namespace unishard::trainer
