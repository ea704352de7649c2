#include "temp_dir.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <iostream>
#include <string>

namespace unishard::test {

TempDir::TempDir(const std::filesystem::path& parent) {
  std::string name = (parent / "unishard-test-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr)
    throw std::filesystem::filesystem_error("mkdtemp", name,
                                            std::error_code(errno, std::generic_category()));
  path_ = name;
}

TempDir::~TempDir() {
  if (::testing::Test::HasFailure()) {
    std::cerr << "kept for inspection: " << path_ << "\n";
    return;
  }
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace unishard::test
