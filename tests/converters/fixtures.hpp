#pragma once
// The shared fixtures, which are outside the repository and may be missing.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace unishard::test {

inline std::filesystem::path fixtures() {
  const char* named = std::getenv("UNISHARD_FIXTURES");
  return named != nullptr ? named : UNISHARD_TEST_DATA "/../../shared/fixtures";
}

}  // namespace unishard::test

#define SKIP_WITHOUT_FIXTURES()                                                           \
  if (!std::filesystem::exists(unishard::test::fixtures() / "safetensors" / "README.md")) \
  GTEST_SKIP() << "no fixtures at " << unishard::test::fixtures() << " (UNISHARD_FIXTURES)"
