// A real file system that is really full.
#include "unishard/format/commit.hpp"
#include "unishard/format/error.hpp"

#include "make_checkpoint.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace unishard {
namespace {

TEST(DiskFull, SaveFailsWithNoSpaceAndTheOldCheckpointStays) {
  const test::TempDir dir;
  const Path disk = dir.path() / "disk";
  std::filesystem::create_directory(disk);
  if (::mount("none", disk.c_str(), "tmpfs", 0, "size=2m") != 0)
    GTEST_SKIP() << "mounting needs root: " << std::strerror(errno);
  test::write_example(disk, {.world_size = 2, .step = 1, .tag = "global_step1"});
  try {
    test::write_example(disk, {.world_size = 2, .step = 2, .tag = "global_step2", .scale = 20});
    ADD_FAILURE() << "saved 2.5 MiB on a disk of 2 MiB";
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ErrorCode::NoSpace || error.code() == ErrorCode::Io)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("shard-0000"), std::string::npos) << error.what();
  }
  EXPECT_EQ(resolve_checkpoint(posix_storage(), disk, {}).filename(), "global_step1");
  EXPECT_NO_THROW(CheckpointReader(posix_storage(), disk / "global_step1"));
  EXPECT_EQ(posix_storage().list(disk).size(), 2u) << "the failed save left nothing";
  ::umount(disk.c_str());
}

}  // namespace
}  // namespace unishard
