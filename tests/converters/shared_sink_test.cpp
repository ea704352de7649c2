// Several sinks of one result, as several processes make them.
#include "unishard/converters/registry.hpp"
#include "unishard/format/checkpoint_folder.hpp"
#include "unishard/format/commit.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/output_lock.hpp"
#include "unishard/format/staging_names.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "temp_dir.hpp"
#include "whole_copy.hpp"

#include <gtest/gtest.h>

#include <map>

namespace unishard::converters {
namespace {

namespace fs = std::filesystem;
using test::read_files_below;
using test::TempDir;

class SharedSinks : public testing::TestWithParam<std::string> {
 protected:
  SharedSinks() {
    test::write_example(temp_.path() / "in", {.bf16 = true, .scale = 60});
    source_ = open_source(posix_storage(), temp_.path() / "in");
    target_ = source_->catalog();
    target_.world_size = 4;
    target_.stage = 2;
    plan_ = whole_copy(*source_, target_);
  }

  static std::string name() {
    if (GetParam() == "safetensors") return "out.safetensors";
    if (GetParam() == "torch") return "out.pt";
    if (GetParam() == "npz") return "out.npz";
    return GetParam() == "hdf5" ? "out.h5" : "out";
  }

  std::vector<std::unique_ptr<Sink>> sinks(const Path& folder, std::uint32_t size) const {
    fs::create_directory(folder);
    const std::string id = new_save_id();
    std::vector<std::unique_ptr<Sink>> out;
    for (std::uint32_t rank = 0; rank < size; ++rank)
      out.push_back(make_sink(posix_storage(),
                              {.format = GetParam(),
                               .path = folder / name(),
                               .tag = "tag",
                               .share = {.rank = rank, .size = size, .id = id}},
                              target_));
    return out;
  }

  /// Writes it by `size` sinks; returns the digests of all that they were given.
  Digests write(const Path& folder, std::uint32_t size) const {
    const auto shared = sinks(folder, size);
    std::vector<PartDigest> parts;
    std::vector<std::string> seals;
    for (auto sink = shared.rbegin(); sink != shared.rend(); ++sink) {
      const std::vector<PartDigest> own =
          copy(plan_, **sink, {.threads = 2, .buffer_bytes = 1 << 16}, WantDigests::Yes).digests;
      parts.insert(parts.end(), own.begin(), own.end());
      seals.insert(seals.begin(), (*sink)->seal());
    }
    EXPECT_FALSE(fs::exists(folder / name() / "tag"));
    EXPECT_FALSE(fs::is_regular_file(folder / name()));
    shared.front()->commit(seals);
    return whole_digests(target_, parts);
  }

  const TempDir temp_;
  std::unique_ptr<Source> source_;
  Catalog target_;
  CopyPlan plan_;
};

TEST_P(SharedSinks, SeveralWriteWhatOneWrites) {
  const Digests one = write(temp_.path() / "one", 1);
  for (const std::uint32_t size : {2u, 3u, 9u}) {
    const Path folder = temp_.path() / std::to_string(size);
    EXPECT_EQ(write(folder, size), one);
    if (GetParam() != "native") {
      EXPECT_EQ(read_files_below(folder), read_files_below(temp_.path() / "one"));
    }
    const auto written = open_source(posix_storage(), folder / name());
    for (std::size_t i = 0; i < written->catalog().tensors.size(); ++i) {
      const TensorInfo& tensor = written->catalog().tensors[i];
      std::vector<std::byte> bytes(tensor.bytes());
      written->read(i, {0, tensor.elements()}, bytes);
    }
    if (GetParam() == "native") {
      EXPECT_EQ(identity(written->catalog()), identity(source_->catalog()));
    }
  }
}

TEST_P(SharedSinks, TheFirstOneClearsUp) {
  const Path folder = temp_.path() / "out";
  auto shared = sinks(folder, 3);
  for (const auto& sink : shared) copy(plan_, *sink, {});
  std::size_t files = read_files_below(folder).size();
  shared.pop_back();
  shared.pop_back();
  EXPECT_FALSE(read_files_below(folder).empty());
  EXPECT_LE(read_files_below(folder).size(), files);
  shared.clear();
  EXPECT_TRUE(read_files_below(folder).empty());
}

INSTANTIATE_TEST_SUITE_P(Formats, SharedSinks,
                         testing::Values("native", "safetensors", "deepspeed",
                                         "deepspeed-universal", "dcp", "torch", "hdf5", "npz"),
                         [](const auto& format) {
                           std::string name = format.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(SharedSink, AMissingPartIsNotPublished) {
  const TempDir temp;
  test::write_example(temp.path() / "in");
  const auto source = open_source(posix_storage(), temp.path() / "in");
  const CopyPlan plan = whole_copy(*source, source->catalog());
  const std::string id = new_save_id();
  const auto first = make_native_sink(posix_storage(), temp.path() / "out", "tag",
                                      source->catalog(), {}, {.rank = 0, .size = 2, .id = id});
  copy(plan, *first, {});
  const std::vector<std::string> seals = {first->seal(), "[]"};
  EXPECT_THROW(first->commit(seals), Error);
  EXPECT_THROW(first->commit(std::vector<std::string>{seals[0], "nonsense"}), Error);
  EXPECT_THROW(first->commit(std::vector<std::string>{seals[0], seals[0]}), Error);
  EXPECT_FALSE(fs::exists(temp.path() / "out/tag"));
}

/// A process that is killed after it has published leaves its lock.
TEST(Sinks, RemoveTheLockOfADeadWriter) {
  const TempDir temp;
  const Path output = temp.path() / "out.pt", lock = temp.path() / lock_name("out.pt");
  const auto error_of_writing = [&] {
    return test::error_of([&] {
      make_sink(posix_storage(), {.format = "torch", .path = output, .tag = "t"}, Catalog{});
    });
  };
  test::write_file(output, "published");
  test::write_file(lock, "0123456789abcdef\n" + test::read_file("/proc/sys/kernel/random/boot_id") +
                             "process 1 of this host\n\n");
  EXPECT_THAT(error_of_writing(), test::Fails(ErrorCode::AlreadyExists, {"out.pt"}));
  EXPECT_FALSE(fs::exists(lock));
  const OutputLock living = OutputLock::beside(posix_storage(), output);
  EXPECT_THAT(error_of_writing(), test::Fails(ErrorCode::AlreadyExists, {"out.pt"}));
  EXPECT_TRUE(fs::exists(lock));
  living.require_held();
}

}  // namespace
}  // namespace unishard::converters
