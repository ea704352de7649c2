#pragma once
#include <filesystem>

namespace unishard::test {

/// A fresh folder below $TMPDIR, removed at the end unless the current test has failed.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace unishard::test
