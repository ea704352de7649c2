#include "guarded_device/generator.hpp"

#include "guarded_device/streams.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/version.h>

#include <vector>

namespace unishard::test::guarded {
namespace {

/// `virtual` without `override`: LibTorch 1.13 lacks the function.
struct Generator final : c10::GeneratorImpl {
  Generator(c10::DeviceIndex device, at::Generator the_cpu)
      : GeneratorImpl(c10::Device(kDeviceType, device),
                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        cpu(std::move(the_cpu)) {}
  void set_current_seed(std::uint64_t seed) override { cpu.set_current_seed(seed); }
  std::uint64_t current_seed() const override { return cpu.current_seed(); }
  std::uint64_t seed() override { return cpu.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    cpu.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return cpu.unsafeGetGeneratorImpl()->get_state();
  }
  virtual void set_offset(std::uint64_t) { TORCH_CHECK(false, "guarded: no generator offsets"); }
  virtual std::uint64_t get_offset() const { return 0; }
  Generator* clone_impl() const override { return new Generator(device_.index(), cpu.clone()); }

  at::Generator cpu;
};

}  // namespace

at::Generator new_generator(c10::DeviceIndex device) {
  return at::make_generator<Generator>(device, at::detail::createCPUGenerator());
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto* const all = [] {
    auto* const made = new std::vector<at::Generator>;
    for (c10::DeviceIndex i = 0; i < kDevices; ++i) made->push_back(new_generator(i));
    return made;
  }();
  return (*all)[static_cast<std::size_t>(device)];
}

c10::IValue generator_on_host(const c10::IValue& argument, c10::DeviceIndex device) {
#if TORCH_VERSION_MAJOR < 2
  if (argument.isNone()) return argument;
#endif
  const at::Generator generator =
      argument.isNone() ? default_generator(device) : argument.toGenerator();
  if (generator.device().is_cpu()) return argument;
  return static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->cpu;
}

}  // namespace unishard::test::guarded
