#pragma once
#include <string>

namespace unishard::trainer::detail {

/// All problems of a configuration, so that one run names them all.
class KeyProblems {
 public:
  void add(const std::string& problem, const std::string& hint);
  /// Throws: InvalidArgument unless nothing was added.
  void raise_any() const;

 private:
  std::string problems_, hints_;
};

}  // namespace unishard::trainer::detail
