#pragma once
// The random numbers that a computation would draw next, so that it can draw them again.
#include "state/dropout_source.hpp"
#include "state/generator_scope.hpp"

#include <optional>
#include <utility>
#include <vector>

namespace unishard::trainer::detail {

/// States of the generators: LibTorch's default ones of the CPU and of a device, and the source of
/// dropout() on this thread.
class RandomState {
 public:
  /// Copies the states as they are now.
  static RandomState capture(at::Device device);

 private:
  friend class RandomStateScope;
  std::vector<std::pair<at::Generator, at::Tensor>> defaults_;
  std::optional<std::pair<at::Device, at::Tensor>> dropout_;
  std::optional<UseCounts> uses_;
};

/// Draws continue from a captured state as long as it lives; then the former states are back.
/// Belongs to the thread that constructed it.
class RandomStateScope {
 public:
  explicit RandomStateScope(const RandomState& state);
  ~RandomStateScope();
  RandomStateScope(const RandomStateScope&) = delete;
  RandomStateScope& operator=(const RandomStateScope&) = delete;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> former_;
  std::optional<OwnGenerator> dropout_;
  std::optional<UseCounts> uses_;
  DropoutSource outer_;
};

}  // namespace unishard::trainer::detail
