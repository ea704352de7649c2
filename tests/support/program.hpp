#pragma once
// Runs the real program as a user starts it.
#include "unishard/format/json.hpp"

#include "process.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace unishard::test {

inline const std::string kProgram = UNISHARD_BIN "/unishard";

inline ProcessResult unishard(std::vector<std::string> arguments, const Environment& env = {}) {
  arguments.insert(arguments.begin(), kProgram);
  return run(std::move(arguments), env);
}

/// Runs the program with --json; returns what it prints. Another exit status than `status` fails
/// the test.
inline Json report_of(std::vector<std::string> arguments, int status = 0) {
  arguments.emplace_back("--json");
  const ProcessResult result = unishard(std::move(arguments));
  EXPECT_EQ(result.status, status) << result.out << result.err;
  return parse_json(result.out, "the program's output");
}

}  // namespace unishard::test
