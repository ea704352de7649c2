#pragma once
// Makes LibTorch's default generators a function of the micro-batch, so that dropout of any kind
// (torch::nn::Dropout, fused attention, the user's own draws) is the same on every world size and
// after a resume.
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace unishard::trainer::detail {

/// Returns the default generators from which work on a device draws: the CPU's and the device's.
/// LibTorch 1.13 has none for devices other than CUDA.
std::vector<at::Generator> default_generators(at::Device device);

/// A generator of its own for draws on a device, the CPU's where LibTorch has none for the device.
/// It comes from a pool of the process and goes back to it, because LibTorch 1.13 never frees what
/// clone() of a generator returns.
class OwnGenerator {
 public:
  OwnGenerator(at::Device device, std::uint64_t seed);
  ~OwnGenerator();
  OwnGenerator(const OwnGenerator&) = delete;
  OwnGenerator& operator=(const OwnGenerator&) = delete;

  at::Generator& get() { return generator_; }

 private:
  at::Generator generator_;
};

/// Seeds the default generators of a device, and gives them their former states back when
/// destroyed. They belong to the process: all its threads draw from them.
class GeneratorScope {
 public:
  GeneratorScope(at::Device device, std::uint64_t seed);
  ~GeneratorScope();
  GeneratorScope(const GeneratorScope&) = delete;
  GeneratorScope& operator=(const GeneratorScope&) = delete;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> former_;
};

}  // namespace unishard::trainer::detail
