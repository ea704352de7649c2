#pragma once
// One number that several tensors have in common, because a file keeps it once for all of them.
#include <cstddef>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace unishard::converters::torch {

/// Thread safety: thread-safe.
class AgreedNumber {
 public:
  /// Takes the bytes of the first tensor, and compares those of each other one with them.
  /// Throws: Unsupported, naming both tensors, when they differ.
  void check(const std::string& label, std::span<const std::byte> bytes);

 private:
  std::mutex mutex_;
  std::string first_;
  std::vector<std::byte> bytes_;
};

}  // namespace unishard::converters::torch
