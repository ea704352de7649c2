#pragma once
// Starts the ranks of a program as a launcher does, and collects their output.
#include "process.hpp"

#include <chrono>
#include <string>
#include <vector>

namespace unishard::test {

class Ranks {
 public:
  /// `environment` is added to every rank's environment.
  Ranks(const std::vector<std::string>& argv, int world_size, const Environment& environment = {});

  Process& operator[](std::size_t rank) { return processes_[rank]; }
  std::vector<ProcessResult> wait();

 private:
  std::vector<Process> processes_;
};

/// Waits for all ranks. When a rank's status is not 0, fails the current test with all output.
std::vector<ProcessResult> run_ranks(const std::vector<std::string>& argv, int world_size,
                                     const Environment& environment = {});

}  // namespace unishard::test
