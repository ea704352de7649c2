// Runs the fuzz targets on the inputs in tests/fuzz/corpus and on mutations of them, with the
// compiler and the checks of the ordinary build. A finding ends the program.
#include "expect.hpp"
#include "mutators.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <random>
#include <string>
#include <vector>

// The targets are compiled into this program under these names.
extern "C" {
using Target = int(const std::uint8_t*, std::size_t);
using Mutator = std::size_t(std::uint8_t*, std::size_t, std::size_t, unsigned);
Target pickle_input, torch_file_input, safetensors_input, npz_input, gguf_input, manifest_input,
    shard_input, folder_input;
Mutator pickle_mutation, torch_file_mutation, npz_mutation, manifest_mutation, folder_mutation;
}

namespace {

std::mt19937_64& random_bits() {
  static std::mt19937_64 bits;
  return bits;
}

}  // namespace

/// In the place of libFuzzer's own mutator, which is in no library that GCC can link.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t) {
  auto& bits = random_bits();
  if (size == 0) return 0;
  for (auto changes = 1 + bits() % 3; changes > 0; --changes)
    data[bits() % size] = static_cast<std::uint8_t>(bits() & 0xff);
  return bits() % 8 == 0 ? bits() % size : size;
}

namespace {

struct Case {
  std::string name;  ///< of the corpus
  Target* target;
  Mutator* mutate;
};

class FuzzCorpus : public testing::TestWithParam<Case> {};

TEST_P(FuzzCorpus, EveryInputIsReadOrRefused) {
  constexpr unsigned kMutations = 100;
  const std::filesystem::path path =
      std::filesystem::path(UNISHARD_TEST_DATA) / "fuzz/corpus" / (GetParam().name + ".zip");
  const unishard::fuzz::ZipFiles inputs = unishard::fuzz::files_of(unishard::test::read_file(path));
  ASSERT_FALSE(inputs.empty()) << path;
  random_bits().seed(1);
  for (const auto& [name, bytes] : inputs) {
    SCOPED_TRACE(name);
    std::vector<std::uint8_t> data(bytes.begin(), bytes.end());
    EXPECT_EQ(GetParam().target(data.data(), data.size()), 0);
    for (unsigned seed = 0; seed < kMutations; ++seed) {
      std::vector<std::uint8_t> changed = data;
      changed.resize(2 * data.size() + 64);
      changed.resize(GetParam().mutate(changed.data(), data.size(), changed.size(), seed));
      EXPECT_EQ(GetParam().target(changed.data(), changed.size()), 0);
    }
  }
}

std::size_t change_bytes(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned) {
  return LLVMFuzzerMutate(data, size, max_size);
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzCorpus,
                         testing::Values(Case{"pickle", pickle_input, pickle_mutation},
                                         Case{"torch_file", torch_file_input, torch_file_mutation},
                                         Case{"safetensors", safetensors_input, change_bytes},
                                         Case{"npz", npz_input, npz_mutation},
                                         Case{"gguf", gguf_input, change_bytes},
                                         Case{"manifest", manifest_input, manifest_mutation},
                                         Case{"shard", shard_input, change_bytes},
                                         Case{"deepspeed", folder_input, folder_mutation},
                                         Case{"dcp", folder_input, folder_mutation}),
                         [](const testing::TestParamInfo<Case>& test) { return test.param.name; });

}  // namespace
