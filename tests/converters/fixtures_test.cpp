// Every test that walks over fixtures asserts how many it has read. This one tells which folder
// holds fewer of them.
#include "fixtures.hpp"

#include <cstddef>
#include <string_view>

namespace unishard::test {
namespace {

struct Count {
  std::string_view folder;
  std::size_t least;
};
constexpr Count counts[] = {
    {"deepspeed", 44},           {"torch", 90}, {"torch/hostile", 153}, {"safetensors", 16},
    {"safetensors/hostile", 85},
};

// Returns the number of entries of `folder` that are fixtures: all of a folder of hostile files,
// else the folders but `hostile`.
std::size_t count_fixtures(const std::filesystem::path& folder) {
  std::size_t found = 0;
  if (!std::filesystem::is_directory(folder)) return found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (folder.filename() == "hostile" ||
        (entry.is_directory() && entry.path().filename() != "hostile"))
      ++found;
  }
  return found;
}

TEST(Fixtures, AreAllThere) {
  if (!std::filesystem::exists(fixtures()))
    GTEST_SKIP() << "no fixtures at " << fixtures() << " (UNISHARD_FIXTURES)";
  for (const auto& [folder, least] : counts) {
    EXPECT_GE(count_fixtures(fixtures() / folder), least)
        << (fixtures() / folder) << " holds fewer fixtures than the tests expect";
  }
}

}  // namespace
}  // namespace unishard::test
