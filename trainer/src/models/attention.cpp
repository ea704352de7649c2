#include "models/attention.hpp"

#include "unishard/trainer/dropout.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#if TORCH_VERSION_MAJOR >= 2
#include <ATen/ops/scaled_dot_product_attention.h>
#endif
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 5)
#include <ATen/ops/_fused_sdp_choice.h>
#define UNISHARD_HAS_GROUPED_HEADS 1
#endif

namespace unishard::trainer::detail {
namespace {

/// Queries that are computed at a time in attention with a window.
constexpr std::int64_t kQueries = 1024;

/// Returns keys or values with a head for each head of the queries.
at::Tensor repeat_heads(const at::Tensor& x, std::int64_t heads) {
  const std::int64_t times = heads / x.size(1);
  if (times == 1) return x;
  return x.unsqueeze(2)
      .expand({x.size(0), x.size(1), times, x.size(2), x.size(3)})
      .reshape({x.size(0), heads, x.size(2), x.size(3)});
}

/// `visible` [queries, keys] says what each query attends to.
at::Tensor explicit_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& visible, double p) {
  const at::Tensor scores =
      at::matmul(q, k.transpose(-2, -1)) / std::sqrt(static_cast<double>(q.size(-1)));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const at::Tensor weights = scores.masked_fill(visible.logical_not(), -kInfinity).softmax(-1);
  return at::matmul(dropout(weights, p), v);
}

at::Tensor all_before(const at::Tensor& q) {
  return at::ones({q.size(2), q.size(2)}, q.options().dtype(at::kBool)).tril();
}

#if TORCH_VERSION_MAJOR >= 2

/// Without `visible`, every query attends to all before it.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const std::optional<at::Tensor>& visible, double p) {
  if (!has_fused_attention(q.is_cuda(), p))
    return explicit_attention(q, k, v, visible ? *visible : all_before(q), p);
  return at::scaled_dot_product_attention(q, k, v, visible, p, /*is_causal=*/!visible);
}

#else

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const std::optional<at::Tensor>& visible, double p) {
  return explicit_attention(q, k, v, visible ? *visible : all_before(q), p);
}

#endif

#ifdef UNISHARD_HAS_GROUPED_HEADS

/// Returns the values where a fused kernel of the device reads each head of keys and values for
/// several heads of queries, so that none is copied; LibTorch would build the matrix elsewhere.
std::optional<at::Tensor> grouped_attention(const at::Tensor& q, const at::Tensor& k,
                                            const at::Tensor& v, double p) {
  constexpr std::int64_t kMatrix = 0;  // sdp::SDPBackend::math
  if (!q.is_cuda() || q.size(1) == k.size(1) ||
      at::_fused_sdp_choice(q, k, v, {}, p, /*is_causal=*/true, {}, /*enable_gqa=*/true) <= kMatrix)
    return std::nullopt;
  return at::scaled_dot_product_attention(q, k, v, {}, p, /*is_causal=*/true, {},
                                          /*enable_gqa=*/true);
}

#else

std::optional<at::Tensor> grouped_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                            double) {
  return std::nullopt;
}

#endif

/// Some queries at a time, each part with the keys that any of them attends to.
at::Tensor windowed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const AttentionOptions& options) {
  const std::int64_t time = q.size(2);
  const std::int64_t step = std::min(options.window, kQueries);
  std::vector<at::Tensor> parts;
  for (std::int64_t begin = 0; begin < time; begin += step) {
    const std::int64_t end = std::min(begin + step, time);
    const std::int64_t first = std::max<std::int64_t>(begin - options.window + 1, 0);
    const auto positions = q.options().dtype(at::kLong);
    const at::Tensor distance = at::arange(begin, end, positions).unsqueeze(1) -
                                at::arange(first, end, positions).unsqueeze(0);
    const at::Tensor visible = distance.ge(0).logical_and(distance.lt(options.window));
    parts.push_back(attend(q.narrow(2, begin, end - begin), k.narrow(2, first, end - first),
                           v.narrow(2, first, end - first), visible, options.dropout));
  }
  return at::cat(parts, 2);
}

}  // namespace

/// Only CUDA's kernels have dropout. For other devices LibTorch would build the matrix too, with
/// masks of the default generator instead of the unit's.
bool has_fused_attention([[maybe_unused]] bool on_cuda, [[maybe_unused]] double dropout) {
#if TORCH_VERSION_MAJOR >= 2
  return dropout == 0 || on_cuda;
#else
  return false;
#endif
}

at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys,
                            const at::Tensor& values, const AttentionOptions& options) {
  const bool has_window = options.window > 0 && options.window < queries.size(2);
  if (!has_window) {
    if (auto values_of_groups = grouped_attention(queries, keys, values, options.dropout))
      return *values_of_groups;
  }
  const at::Tensor k = repeat_heads(keys, queries.size(1));
  const at::Tensor v = repeat_heads(values, queries.size(1));
  if (has_window) return windowed_attention(queries, k, v, options);
  return attend(queries, k, v, std::nullopt, options.dropout);
}

}  // namespace unishard::trainer::detail
