// 10,000 flipped bits, anywhere in any file of a checkpoint: `verify --deep` reports each one, and
// says where.
#include "unishard/format/checkpoint_folder.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "temp_dir.hpp"
#include "workflows/verify/verify.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>

namespace unishard::tools {
namespace {

namespace fs = std::filesystem;

constexpr int kFlips = 10'000;

// A file of a checkpoint that can be changed one byte at a time.
struct Target {
  fs::path path;
  std::uint64_t end = 0;  // in the concatenation of all files
};

std::vector<Target> files_below(const fs::path& root) {
  std::vector<Target> files;
  std::uint64_t total = 0;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.is_regular_file()) files.push_back({entry.path(), total += entry.file_size()});
  }
  return files;
}

// Whether a finding is about this file: for payload it names tensors or, in padding, the byte
// range.
bool explains(const Finding& finding, const fs::path& path) {
  const bool about =
      finding.path == path || finding.message.find(path.filename().string()) != std::string::npos;
  return about && (!finding.lost.empty() || finding.bytes || !finding.message.empty());
}

TEST(VerifyDeep, ReportsTenThousandFlippedBitsWithTheirFile) {
  const test::TempDir dir;
  test::write_example(dir.path(), {.world_size = 2, .stage = 2, .bf16 = true});
  const VerifyOptions options{.deep = true, .transfer = {.threads = 1}};
  ASSERT_TRUE(verify(posix_storage(), dir.path(), options).is_clean());
  const std::vector<Target> files = files_below(dir.path());
  std::mt19937_64 random(42);
  int missed = 0, unexplained = 0;
  for (int i = 0; i < kFlips; ++i) {
    // Three of four anywhere; the rest in a file chosen first, so that small files get their share.
    std::size_t file = random() % files.size();
    std::uint64_t offset = random() % fs::file_size(files[file].path);
    if (i % 4 != 0) {
      const std::uint64_t at = random() % files.back().end;
      file =
          static_cast<std::size_t>(std::upper_bound(files.begin(), files.end(), at,
                                                    [](std::uint64_t byte, const Target& target) {
                                                      return byte < target.end;
                                                    }) -
                                   files.begin());
      offset = at - (file == 0 ? 0 : files[file - 1].end);
    }
    const fs::path& path = files[file].path;
    const int bit = 1 << random() % 8;
    test::flip_bits(path, offset, bit);
    const VerifyReport report = verify(posix_storage(), dir.path(), options);
    test::flip_bits(path, offset, bit);
    if (report.is_clean()) {
      ++missed;
      ADD_FAILURE() << "missed: " << path << " byte " << offset;
    } else if (std::none_of(report.findings.begin(), report.findings.end(),
                            [&](const Finding& finding) { return explains(finding, path); })) {
      ++unexplained;
      ADD_FAILURE() << path << " byte " << offset << ": " << report.findings.front().message;
    }
    if (missed + unexplained > 10) break;
  }
  RecordProperty("flips", kFlips);
  RecordProperty("missed", missed);
  EXPECT_TRUE(verify(posix_storage(), dir.path(), options).is_clean());
}

}  // namespace
}  // namespace unishard::tools
