#pragma once
// Starts the ranks of a program as a launcher would, and collects what they said.
#include "process.hpp"

#include <chrono>
#include <string>
#include <vector>

namespace unishard::test {

class Ranks {
 public:
  /// `environment` is added to every rank's.
  Ranks(const std::vector<std::string>& argv, int world_size, const Environment& environment = {});

  Process& operator[](std::size_t rank) { return processes_[rank]; }
  std::vector<ProcessResult> wait();

 private:
  std::vector<Process> processes_;
};

/// Runs to the end; fails the current test, with all output, when a rank's status is not 0.
std::vector<ProcessResult> run_ranks(const std::vector<std::string>& argv, int world_size,
                                     const Environment& environment = {});

}  // namespace unishard::test
