// What Source::stored_ranges() says of real checkpoints against their files: the data in the files
// of one rank is changed, and exactly the elements of that rank must change.
#include "unishard/converters/source.hpp"
#include "unishard/format/storage.hpp"

#include "containers/zip_reader.hpp"
#include "expect.hpp"
#include "fixtures.hpp"
#include "formats/dcp/metadata.hpp"
#include "formats/dcp/state_dict.hpp"
#include "formats/deepspeed/layout.hpp"
#include "read_source.hpp"
#include "temp_dir.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kCounterBytes = 8, kSmallBytes = 256;

/// Changes every byte of the archive's tensors, but not of step counters, on which opening depends.
void change_tensors(const torch::Window& window, std::string& bytes) {
  const torch::ZipReader zip(window);
  for (const torch::ZipEntry& entry : zip.entries()) {
    if (!entry.name.starts_with("data/") || entry.bytes <= kCounterBytes) continue;
    const std::uint64_t begin = window.begin + zip.data_offset(entry);
    for (std::uint64_t i = 0; i < entry.bytes; ++i)
      bytes[begin + i] = static_cast<char>(bytes[begin + i] ^ 1);
  }
}

/// The archives of each rank: file, offset and length (0: the whole file).
using Archives =
    std::multimap<std::uint32_t, std::pair<Path, std::pair<std::uint64_t, std::uint64_t>>>;

void change_rank(const Archives& archives, std::uint32_t rank) {
  for (auto [at, end] = archives.equal_range(rank); at != end; ++at) {
    const auto& [file, extent] = at->second;
    std::string bytes = test::read_file(file);
    torch::Window window = torch::whole_file(posix_storage(), file);
    if (extent.second != 0) window = {window.file, extent.first, extent.second};
    change_tensors(window, bytes);
    test::write_file(file, bytes);
  }
}

Archives deepspeed_archives(const Path& tag, std::uint32_t tensor_ranks) {
  Archives archives;
  for (const auto& entry : fs::directory_iterator(tag)) {
    const auto name = deepspeed::parse_file_name(entry.path().filename().string());
    if (name.role != deepspeed::FileRole::Other)
      archives.emplace(name.rank * tensor_ranks + name.model_rank,
                       std::pair{entry.path(), std::pair{0, 0}});
  }
  return archives;
}

Archives dcp_archives(const Path& folder) {
  Archives archives;
  const dcp::Metadata metadata = dcp::read_metadata(posix_storage(), folder / ".metadata");
  for (const dcp::StoredTensor& tensor : metadata.tensors) {
    for (const dcp::StoredChunk& chunk : tensor.chunks) {
      const Path file = folder / metadata.files[chunk.item.file];
      archives.emplace(dcp::rank_of_file(file).value(),
                       std::pair{file, std::pair{chunk.item.offset, chunk.item.length}});
    }
  }
  return archives;
}

/// Compares, for every rank, the elements that changed with those that are said to be its.
template <class Find>
void expect_ranges_are_those_of_the_files(const Path& checkpoint, std::uint32_t ranks,
                                          const Find& find) {
  const auto source = open_source(posix_storage(), checkpoint);
  const auto& tensors = source->catalog().tensors;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    const test::TempDir work;
    const Path copy = test::copy_folder(checkpoint, work.path() / "copy");
    change_rank(find(copy), rank);
    const auto changed = open_source(posix_storage(), copy);
    changed->ignore_checksums();
    std::uint64_t of_rank = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].bytes() < kSmallBytes) continue;  // a part of it may be as small as a counter
      const auto before = read_all(*source, i), after = read_all(*changed, i);
      const std::uint64_t width = size_of(tensors[i].dtype);
      const auto ranges = source->stored_ranges(i);
      std::uint64_t covered = 0;
      for (std::uint64_t e = 0; e < tensors[i].elements(); ++e) {
        bool is_in = false, is_only = true;
        for (const StoredRange& stored : ranges) {
          if (e < stored.range.begin || e >= stored.range.end) continue;
          (stored.rank == rank ? is_in : is_only) = stored.rank == rank;
        }
        const bool differs = !std::equal(before.data() + e * width, before.data() + (e + 1) * width,
                                         after.data() + e * width);
        ASSERT_TRUE(differs ? is_in : !(is_in && is_only)) << tensors[i].label() << " " << e;
        covered += differs ? 1u : 0u;
      }
      of_rank += covered;
    }
    EXPECT_GT(of_rank, 0u);
  }
}

TEST(StoredRanges, OfDeepSpeedAreThoseOfItsFiles) {
  SKIP_WITHOUT_FIXTURES();
  const std::vector<std::tuple<std::string, std::uint32_t, std::uint32_t>> cases = {
      {"deepspeed/stage1_w2", 1, 2},
      {"deepspeed/stage2_w3", 1, 3},
      {"deepspeed/stage3_w3", 1, 3},
      {"parallel/autotp2_stage1_fp32_uneven_bias", 2, 2},
      {"parallel/autotp2dp2_stage3_fp32", 2, 4}};
  for (const auto& [name, tensor_ranks, ranks] : cases) {
    SCOPED_TRACE(name);
    expect_ranges_are_those_of_the_files(
        test::fixtures() / name / "checkpoint", ranks, [&](const Path& copy) {
          return deepspeed_archives(copy / test::read_file(copy / "latest"), tensor_ranks);
        });
  }
}

TEST(StoredRanges, OfDcpAreThoseOfItsFiles) {
  SKIP_WITHOUT_FIXTURES();
  for (const auto& [name, ranks] : {std::pair{"torch/dcp_fsdp2_w3", 3},
                                    {"parallel/dcp_fsdp2_tp2", 4},
                                    {"parallel/dcp_pp2_fsdp2", 4}}) {
    SCOPED_TRACE(name);
    expect_ranges_are_those_of_the_files(test::fixtures() / name / "checkpoint",
                                         static_cast<std::uint32_t>(ranks), dcp_archives);
  }
}

TEST(StoredRanges, OfAModelAreNone) {
  SKIP_WITHOUT_FIXTURES();
  const auto source = open_source(
      posix_storage(), test::fixtures() / "parallel/autotp2_stage1_bf16/expected.safetensors");
  EXPECT_TRUE(source->stored_ranges(0).empty());
}

}  // namespace
}  // namespace unishard::converters
