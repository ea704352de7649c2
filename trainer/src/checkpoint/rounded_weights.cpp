#include "checkpoint/rounded_weights.hpp"

#include "checkpoint/rounding.hpp"
#include "device/tensor_bytes.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace unishard::trainer::detail {
namespace {

/// Elements of a device that are rounded at a time.
constexpr std::int64_t kAtOnce = std::int64_t{16} << 20;

at::Tensor flag(bool value) { return at::full({}, value, at::kBool); }

at::Tensor bits(const at::Tensor& sixteen_bits) { return sixteen_bits.view(at::kShort); }

at::Tensor any_differs(const at::Tensor& weights, const at::Tensor& master) {
  const at::ScalarType type = weights.scalar_type();
  if (weights.is_cpu() && is_rounding(floats_of(master), bytes_of(weights), dtype_of(weights)))
    return flag(false);
  return bits(weights).ne(bits(master.to(type))).any();
}

}  // namespace

at::Tensor any_is_not_rounded(const FlatUnit& unit, std::int64_t first, std::int64_t count) {
  const at::NoGradGuard no_grad;
  if (unit.placement().stage == 3 || count == 0)
    return at::zeros({}, at::device(unit.placement().device).dtype(at::kBool));
  const StateArray weights = unit.resident_shard();
  const std::int64_t most = std::min(kAtOnce, unit.store().most_at_once(count));
  at::Tensor result;
  for (std::int64_t done = 0; done < count; done += most) {
    const std::int64_t begin = first + done, size = std::min(most, count - done);
    const at::Tensor part = weights.values(begin, size).to(unit.layout().stored_type());
    const at::Tensor master = unit.master().values(begin, size).to(part.device());
    const at::Tensor differs = any_differs(part, master);
    result = result.defined() ? result.logical_or(differs) : differs;
  }
  return result;
}

}  // namespace unishard::trainer::detail
