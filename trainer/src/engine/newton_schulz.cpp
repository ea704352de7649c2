#include "engine/newton_schulz.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>

#include <cmath>

namespace unishard::trainer::detail {
namespace {

constexpr int kSteps = 5;
constexpr int kRestart = 2;  ///< step before which the Gram matrix is computed anew
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;

at::Tensor transposed(const at::Tensor& matrix) { return matrix.transpose(-2, -1); }

/// Returns b A + c A A.
at::Tensor polynomial(const at::Tensor& square) {
  return kB * square + at::matmul(kC * square, square);
}

at::Tensor normalized(const at::Tensor& matrix) {
  return matrix / (at::linalg_vector_norm(matrix, 2, at::IntArrayRef{-2, -1}, true) + 1e-7);
}

/// Iterates on the matrix itself.
at::Tensor iterate(at::Tensor x) {
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor b = polynomial(at::matmul(x, transposed(x)));
    x = kA * x + at::matmul(b, x);
  }
  return x;
}

/// Iterates on the product of the matrix and its transpose, and returns the factor of the matrix.
/// Pre: fewer rows than columns. Changes `x`, which the factor is of.
at::Tensor iterate_gram(at::Tensor& x) {
  at::Tensor r = at::matmul(x, transposed(x));
  at::Tensor q;
  for (int step = 0; step < kSteps; ++step) {
    if (step == kRestart) {
      x = at::matmul(q, x);
      r = at::matmul(x, transposed(x));
      q.reset();
    }
    const at::Tensor z = polynomial(r);
    if (q.defined()) {
      q = kA * q + at::matmul(z, q);
    } else {
      q = z.clone();
      q.diagonal(0, -2, -1).add_(kA);
    }
    if (step == kSteps - 1 || step + 1 == kRestart) continue;
    const at::Tensor rz = kA * r + at::matmul(z, r);
    r = kA * rz + at::matmul(z, rz);
  }
  return q;
}

/// Pre: no more rows than columns, unless the method is Standard.
at::Tensor orthogonal(const at::Tensor& matrix, NewtonSchulz method) {
  if (method == NewtonSchulz::Standard) return iterate(normalized(matrix.to(at::kBFloat16)));
  at::Tensor x = normalized(matrix).to(matrix.is_cuda() ? at::kHalf : at::kFloat);
  if (x.size(-1) <= x.size(-2)) return iterate(x);
  const at::Tensor factor = iterate_gram(x);
  return at::matmul(factor, x);
}

}  // namespace

at::Tensor newton_schulz(const at::Tensor& tensor, NewtonSchulz method) {
  const at::NoGradGuard no_grad;
  const at::Tensor matrix = tensor.dim() == 4 ? tensor.reshape({tensor.size(0), -1}) : tensor;
  const bool is_tall = matrix.size(-2) > matrix.size(-1);
  at::Tensor update = orthogonal(is_tall ? transposed(matrix) : matrix, method);
  if (is_tall) update = transposed(update);
  const auto rows = static_cast<double>(matrix.size(-2));
  const auto columns = static_cast<double>(matrix.size(-1));
  update = update * (rows > columns ? std::sqrt(rows / columns) : 1.0);
  return update.to(at::kFloat).contiguous().view(tensor.sizes());
}

}  // namespace unishard::trainer::detail
