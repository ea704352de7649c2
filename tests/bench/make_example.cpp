// make_example FOLDER WORLD_SIZE STAGE SCALE: the tests' example checkpoint at any size; scale 8000
// is about 1 GiB.
#include "unishard/format/checkpoint.hpp"

#include "make_checkpoint.hpp"

#include <cstdio>
#include <cstdlib>
#include <exception>

int main(int argc, char** argv) {
  using namespace unishard;
  if (argc != 5) {
    std::fprintf(stderr, "usage: make_example FOLDER WORLD_SIZE STAGE SCALE\n");
    return 2;
  }
  try {
    test::CheckpointSpec spec;
    spec.world_size = static_cast<std::uint32_t>(std::atoi(argv[2]));
    spec.stage = static_cast<std::uint32_t>(std::atoi(argv[3]));
    spec.scale = static_cast<std::uint64_t>(std::atoll(argv[4]));
    const CheckpointReader reader(posix_storage(), test::write_example(argv[1], spec));
    std::printf("%s %llu bytes\n", identity(reader.catalog())->c_str(),
                static_cast<unsigned long long>(reader.catalog().stored_bytes()));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_example: %s\n", error.what());
    return 3;
  }
}
