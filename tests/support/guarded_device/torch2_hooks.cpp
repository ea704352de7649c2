#include "guarded_device/torch2_hooks.hpp"

#include <torch/version.h>

#if TORCH_VERSION_MAJOR >= 2
#include "guarded_device/allocator.hpp"
#include "guarded_device/generator.hpp"
#include "guarded_device/streams.hpp"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice.h>

#include <algorithm>

namespace unishard::test::guarded {
namespace {

using c10::DeviceIndex;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(DeviceIndex device) const override { exchange_device(device); }
  DeviceIndex getCurrentDevice() const override { return current_device(); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override { return exchange_device(device); }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return device < 0 ? current_device() : exchange_device(device);
  }
  bool isPinnedPtr(const void*) const override { return false; }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override {
    return default_generator(device < 0 ? current_device() : device);
  }
  at::Generator getNewGenerator(DeviceIndex device) const override {
    return new_generator(device < 0 ? current_device() : device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    c10::DataPtr fresh = allocate(bytes, "resize_");
    if (const std::size_t kept = std::min(bytes, storage.nbytes()))
      allocator()->copy_data(fresh.get(), storage.data_ptr().get(), kept);
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

/// Attention asks a stub, not the dispatcher; without it the device would take another formula.
std::int64_t choose_attention(const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const std::optional<at::Tensor>& mask,
                              double dropout, bool causal, std::optional<double> scale, bool gqa) {
  return at::_fused_sdp_choice(query, key, value, mask, dropout, causal, scale, gqa);
}

}  // namespace

void register_torch2_hooks() {
  c10::register_privateuse1_backend("guarded");
  at::RegisterPrivateUse1HooksInterface(new Hooks);
}

}  // namespace unishard::test::guarded

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &unishard::test::guarded::choose_attention)
}

#else
namespace unishard::test::guarded {
void register_torch2_hooks() {}
}  // namespace unishard::test::guarded
#endif
