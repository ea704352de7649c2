// A real file system that is really full.
#include "unishard/format/commit.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace unishard {
namespace {

using testing::AnyOf;

TEST(DiskFull, SaveFailsWithNoSpaceAndTheOldCheckpointStays) {
  const test::TempDir dir;
  const Path disk = dir.path() / "disk";
  std::filesystem::create_directory(disk);
  if (::mount("none", disk.c_str(), "tmpfs", 0, "size=2m") != 0)
    GTEST_SKIP() << "mounting needs root: " << std::strerror(errno);
  test::write_example(disk, {.world_size = 2, .step = 1, .tag = "global_step1"});
  EXPECT_THAT(test::error_of([&] {  // 2.5 MiB on a disk of 2 MiB
                test::write_example(
                    disk, {.world_size = 2, .step = 2, .tag = "global_step2", .scale = 20});
              }),
              AnyOf(test::Fails(ErrorCode::NoSpace, "shard-0000"),
                    test::Fails(ErrorCode::Io, "shard-0000")));
  EXPECT_EQ(resolve_checkpoint(posix_storage(), disk, {}).filename(), "global_step1");
  EXPECT_NO_THROW(CheckpointReader(posix_storage(), disk / "global_step1"));
  EXPECT_EQ(posix_storage().list(disk).size(), 2u) << "the failed save left nothing";
  ::umount(disk.c_str());
}

}  // namespace
}  // namespace unishard
