// train_gpt that kills one of its ranks: KILL_AT="2 4 0" means in the second save, just before
// step 4 (CommitStep), rank 0.
#include "program.hpp"

#include <csignal>
#include <cstdlib>
#include <sstream>

int main(int argc, char** argv) {
  const char* where = std::getenv("KILL_AT");
  const char* rank = std::getenv("RANK");
  if (where == nullptr || rank == nullptr) return 1;
  int wanted_save = 0, wanted_step = 0, wanted_rank = 0;
  std::istringstream(where) >> wanted_save >> wanted_step >> wanted_rank;
  const bool is_chosen = std::atoi(rank) == wanted_rank;
  return train_gpt::run_program(argc, argv, [=](int save, unishard::CommitStep step) {
    if (is_chosen && save == wanted_save && static_cast<int>(step) == wanted_step)
      std::raise(SIGKILL);
  });
}
