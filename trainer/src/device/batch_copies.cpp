#include "unishard/trainer/batch_copies.hpp"

#include "device/pinned_turns.hpp"
#include "device/tensor_bytes.hpp"

#include <ATen/ops/empty_like.h>

namespace unishard::trainer {

BatchCopies::BatchCopies(at::Device device)
    : device_(device), turns_(std::make_unique<detail::PinnedTurns>(device)) {}

BatchCopies::~BatchCopies() = default;

at::Tensor BatchCopies::send(const at::Tensor& host) {
  if (device_.is_cpu()) return host;
  detail::copy_to(turns_->next(host.nbytes()), host);
  at::Tensor copy = at::empty_like(host, host.options().device(device_));
  turns_->send(copy);
  return copy;
}

}  // namespace unishard::trainer
