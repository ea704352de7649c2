#pragma once
// Makes LibTorch's default generator a function of the micro-batch, so that dropout of any kind
// (torch::nn::Dropout, fused attention, the user's own draws) is the same on every world size and
// after a resume.
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace unishard::trainer::detail {

/// Seeds the default CPU generator, and gives it its former state back when destroyed. The
/// generator belongs to the process: all its threads draw from it.
class GeneratorScope {
 public:
  explicit GeneratorScope(std::uint64_t seed);
  ~GeneratorScope();
  GeneratorScope(const GeneratorScope&) = delete;
  GeneratorScope& operator=(const GeneratorScope&) = delete;

 private:
  at::Generator generator_;
  at::Tensor former_;
};

}  // namespace unishard::trainer::detail
