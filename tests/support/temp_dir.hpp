#pragma once
#include <filesystem>

namespace unishard::test {

/// A new folder below `parent`, which the destructor removes unless the current test has failed.
class TempDir {
 public:
  explicit TempDir(
      const std::filesystem::path& parent = std::filesystem::temp_directory_path());  // $TMPDIR
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace unishard::test
