#pragma once
// Runs the real program as a user starts it.
#include "process.hpp"

namespace unishard::test {

inline const std::string kProgram = UNISHARD_BIN "/unishard";

inline ProcessResult unishard(std::vector<std::string> arguments, const Environment& env = {}) {
  arguments.insert(arguments.begin(), kProgram);
  return run(std::move(arguments), env);
}

}  // namespace unishard::test
