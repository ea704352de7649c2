#include "unishard/converters/sink.hpp"
#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"
#include "temp_dir.hpp"
#include "whole_copy.hpp"

#include <gtest/gtest.h>

namespace unishard::converters {
namespace {

using test::CheckpointSpec;
using test::TempDir;
using test::write_example;

constexpr TransferOptions kSmall = {.threads = 2, .buffer_bytes = 4096};

void reshard(const Path& from, const Path& to, std::uint32_t world_size, std::uint32_t stage) {
  const auto source = open_source(posix_storage(), from);
  Catalog target = source->catalog();
  target.world_size = world_size;
  target.stage = stage;
  const auto sink = make_native_sink(posix_storage(), to, "t", target);
  copy(whole_copy(*source, target), *sink, kSmall);
  sink->commit();
}

class NativeCopy : public testing::TestWithParam<std::pair<std::uint32_t, std::uint32_t>> {};

TEST_P(NativeCopy, KeepsTheIdentityAndEveryByte) {
  const TempDir temp;
  const auto [world_size, stage] = GetParam();
  write_example(temp.path() / "in", {.bf16 = true});
  reshard(temp.path() / "in", temp.path() / "out", world_size, stage);
  const auto before = open_source(posix_storage(), temp.path() / "in");
  const auto after = open_source(posix_storage(), temp.path() / "out");
  EXPECT_EQ(identity(after->catalog()), identity(before->catalog()));
  EXPECT_EQ(after->catalog().world_size, world_size);
  for (std::size_t i = 0; i < after->catalog().tensors.size(); ++i) {
    const TensorInfo& tensor = after->catalog().tensors[i];
    std::vector<std::byte> bytes(tensor.bytes());
    after->read(i, {0, tensor.elements()}, bytes);
    EXPECT_EQ(bytes, test::example_bytes(after->catalog(), i, 1)) << tensor.label();
  }
}
INSTANTIATE_TEST_SUITE_P(Worlds, NativeCopy,
                         testing::Values(std::pair(1u, 0u), std::pair(1u, 3u), std::pair(2u, 2u),
                                         std::pair(5u, 1u), std::pair(64u, 2u)));

TEST(NativeSink, WritesTheShardsThatATrainerWouldWrite) {
  const TempDir temp;
  write_example(temp.path() / "a", {.world_size = 3});
  write_example(temp.path() / "b", {.world_size = 4, .tag = "t"});
  reshard(temp.path() / "a", temp.path() / "c", 4, 2);
  const CheckpointReader direct(posix_storage(), temp.path() / "b/t");
  const CheckpointReader resharded(posix_storage(), temp.path() / "c/t");
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(direct.manifest().shards[i].bytes, resharded.manifest().shards[i].bytes);
    EXPECT_EQ(direct.shards()[i]->rows().size(), resharded.shards()[i]->rows().size());
  }
}

TEST(NativeSink, AbandonedLeavesNothing) {
  const TempDir temp;
  write_example(temp.path() / "in");
  const auto source = open_source(posix_storage(), temp.path() / "in");
  {
    const auto sink =
        make_native_sink(posix_storage(), temp.path() / "out", "t", source->catalog());
    std::vector<std::byte> bytes(source->catalog().tensors[sink->fragments()[0].tensor].bytes());
    sink->write(0, sink->fragments()[0].range,
                std::span(bytes).first(sink->fragments()[0].range.size() * 4));
  }
  EXPECT_FALSE(std::filesystem::exists(temp.path() / "out"));
}

TEST(NativeSink, RefusesAnExistingTagAndAnUnfinishedCommit) {
  const TempDir temp;
  write_example(temp.path() / "in");
  const auto source = open_source(posix_storage(), temp.path() / "in");
  EXPECT_THROW(
      make_native_sink(posix_storage(), temp.path() / "in", "global_step7", source->catalog()),
      Error);
  const auto sink = make_native_sink(posix_storage(), temp.path() / "out", "t", source->catalog());
  EXPECT_THROW(sink->commit(), Error);
  EXPECT_FALSE(std::filesystem::exists(temp.path() / "out/t"));
}

/// Hands out zeros: a source whose bytes are not what its digests say.
class LyingSource final : public Source {
 public:
  explicit LyingSource(const Catalog& catalog) : catalog_(catalog) {}
  std::string format() const override { return "lie"; }
  const Catalog& catalog() const override { return catalog_; }
  void read_range(std::size_t, ElementRange, std::span<std::byte> out) const override {
    std::fill(out.begin(), out.end(), std::byte{0});
  }

 private:
  const Catalog& catalog_;
};

TEST(NativeSink, PublishesNothingWhenTheDigestsDiffer) {
  const TempDir temp;
  write_example(temp.path() / "in");
  const auto honest = open_source(posix_storage(), temp.path() / "in");
  const LyingSource source(honest->catalog());
  const Catalog target = honest->catalog();
  auto sink = make_native_sink(posix_storage(), temp.path() / "out", "t", target);
  copy(whole_copy(source, target), *sink, kSmall);
  EXPECT_THAT(test::error_of([&] { sink->commit(); }), test::Fails(ErrorCode::Corrupt));
  sink.reset();
  EXPECT_FALSE(std::filesystem::exists(temp.path() / "out"));
}

TEST(Copy, ConvertsOnTheWay) {
  const TempDir temp;
  write_example(temp.path() / "in", {.scale = 3});
  const auto source = open_source(posix_storage(), temp.path() / "in");
  Catalog target;
  CopyPlan plan{.source = source.get(), .target = &target, .tensor_map = {}};
  for (std::size_t i = 0; i < source->catalog().tensors.size(); ++i) {
    const TensorInfo& from = source->catalog().tensors[i];
    if (from.state != state::kFp32) continue;
    TensorInfo to;
    to.fqn = from.fqn;
    to.state = state::kWeights;
    to.dtype = DType::BFloat16;
    to.shape = from.shape;
    target.tensors.push_back(to);
    plan.tensor_map.push_back(i);
  }
  const auto sink =
      make_safetensors_sink(posix_storage(), temp.path() / "m.safetensors", target, {});
  copy(plan, *sink, kSmall);
  sink->commit();
  const auto written = open_source(posix_storage(), temp.path() / "m.safetensors");
  ASSERT_EQ(written->catalog().tensors.size(), target.tensors.size());
  for (std::size_t i = 0; i < target.tensors.size(); ++i) {
    const auto found = written->catalog().find(target.tensors[i].fqn, state::kWeights);
    std::vector<std::uint16_t> out(target.tensors[i].elements());
    written->read(*found, {0, out.size()}, std::as_writable_bytes(std::span(out)));
    std::vector<float> in(out.size());
    source->read(plan.tensor_map[i], {0, in.size()}, std::as_writable_bytes(std::span(in)));
    for (std::size_t j = 0; j < in.size(); ++j) ASSERT_EQ(out[j], round_to_bfloat16(in[j]));
  }
}

TEST(Copy, RefusesImpossibleConversionsBeforeWriting) {
  const TempDir temp;
  write_example(temp.path() / "in");
  const auto source = open_source(posix_storage(), temp.path() / "in");
  Catalog target = source->catalog();
  target.tensors[0].dtype = DType::Int32;
  for (TensorInfo& tensor : target.tensors) tensor.crc64.reset();
  const auto sink = make_native_sink(posix_storage(), temp.path() / "out", "t", target);
  EXPECT_THROW(copy(whole_copy(*source, target), *sink, kSmall), Error);
}

}  // namespace
}  // namespace unishard::converters
