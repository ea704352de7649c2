#include "ranks.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace unishard::test {

Ranks::Ranks(const std::vector<std::string>& argv, int world_size, const Environment& environment) {
  const std::string port = std::to_string(free_port());
  for (int rank = 0; rank < world_size; ++rank) {
    Environment all{{"RANK", std::to_string(rank)},
                    {"LOCAL_RANK", std::to_string(rank)},
                    {"WORLD_SIZE", std::to_string(world_size)},
                    {"MASTER_ADDR", "127.0.0.1"},
                    {"MASTER_PORT", port},
                    {"OMP_NUM_THREADS", "1"},
                    // LibTorch 2.x looks up a name for each connection's address, and a name server
                    // that does not answer costs it ten seconds a time.
                    {"RES_OPTIONS", "timeout:1 attempts:1"}};
    all.insert(all.end(), environment.begin(), environment.end());
    processes_.emplace_back(argv, all);
  }
}

std::vector<ProcessResult> Ranks::wait() {
  std::vector<ProcessResult> results;
  for (Process& process : processes_) results.push_back(process.wait());
  return results;
}

std::vector<ProcessResult> run_ranks(const std::vector<std::string>& argv, int world_size,
                                     const Environment& environment) {
  auto results = Ranks(argv, world_size, environment).wait();
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].status, 0) << "rank " << rank << " said:\n"
                                       << results[rank].out << results[rank].err;
  }
  return results;
}

}  // namespace unishard::test
