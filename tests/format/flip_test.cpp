// Any flipped bit anywhere in a committed checkpoint is noticed: by opening it, by checking all
// chunks, or, in `latest`, by the tag that is not there.
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>

namespace unishard {
namespace {

namespace fs = std::filesystem;

bool has_damaged_chunks(const fs::path& root) {
  const CheckpointReader reader(posix_storage(), resolve_checkpoint(posix_storage(), root, {}));
  std::vector<std::byte> buffer(reader.manifest().chunk_bytes);
  for (const auto& shard : reader.shards()) {
    for (std::uint64_t chunk = 0; chunk < shard->chunk_count(); ++chunk) {
      if (!shard->check_chunks(chunk, 1, buffer).empty()) return true;
    }
  }
  return false;
}

bool noticed(const fs::path& root) {
  bool is_damaged = false;
  return test::thrown_by([&] { is_damaged = has_damaged_chunks(root); }) || is_damaged;
}

class Flip : public testing::TestWithParam<bool> {};

TEST_P(Flip, OneBitAnywhereIsNoticed) {
  const test::TempDir dir;
  test::write_example(dir.path(), {.world_size = 2, .stage = 2, .bf16 = true, .boxes = GetParam()});
  ASSERT_FALSE(noticed(dir.path()));
  std::vector<fs::path> files;
  std::vector<std::uint64_t> ends;
  std::uint64_t total = 0;
  for (const auto& entry : fs::recursive_directory_iterator(dir.path())) {
    if (!entry.is_regular_file()) continue;
    files.push_back(entry.path());
    ends.push_back(total += entry.file_size());
  }
  std::mt19937_64 random(20261121);
  constexpr int kFlips = 2000;  // the tools' test does 10,000 through `verify --deep`
  int missed = 0;
  for (int i = 0; i < kFlips; ++i) {
    // Half of the flips anywhere, half in a file chosen first, so that the small files get their
    // share.
    const std::uint64_t position = random() % total;
    std::size_t file = static_cast<std::size_t>(
        std::upper_bound(ends.begin(), ends.end(), position) - ends.begin());
    std::uint64_t offset = position - (file == 0 ? 0 : ends[file - 1]);
    if (i % 2 == 1) {
      file = random() % files.size();
      offset = random() % fs::file_size(files[file]);
    }
    const int bit = 1 << random() % 8;
    test::flip_bits(files[file], offset, bit);
    if (!noticed(dir.path())) {
      ++missed;
      ADD_FAILURE() << "missed: " << files[file] << " byte " << offset;
    }
    test::flip_bits(files[file], offset, bit);
  }
  EXPECT_EQ(missed, 0);
  EXPECT_FALSE(noticed(dir.path()));
}

INSTANTIATE_TEST_SUITE_P(Fragments, Flip, testing::Bool(),
                         [](const auto& row) { return row.param ? "Boxes" : "Ranges"; });

}  // namespace
}  // namespace unishard
