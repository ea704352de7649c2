// What every byte passes through, alone, on one core, beside memcpy: google-benchmark's flags
// apply. Arguments are bytes, or tensors.
#include "unishard/format/catalog.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/fragment_digest.hpp"
#include "unishard/format/manifest.hpp"
#include "unishard/format/stats.hpp"

#include "codec/chunk_codec.hpp"
#include "make_checkpoint.hpp"

#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <vector>

namespace unishard {
namespace {

constexpr std::int64_t kInCache = 1 << 20, kInMemory = 256 << 20;

/// Like trained weights: normally distributed fp32.
std::vector<std::byte> weights(std::int64_t bytes) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<float> block(std::size_t{1} << 18);
  for (float& value : block) value = normal(random);
  std::vector<std::byte> out(static_cast<std::size_t>(bytes));
  for (std::size_t at = 0; at < out.size(); at += block.size() * sizeof(float))
    std::memcpy(out.data() + at, block.data(),
                std::min(out.size() - at, block.size() * sizeof(float)));
  return out;
}

template <class Work>
void each_byte(benchmark::State& state, const Work& work) {
  const std::vector<std::byte> bytes = weights(state.range(0));
  for (auto _ : state) work(bytes);
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void copy(benchmark::State& state) {
  std::vector<std::byte> to(static_cast<std::size_t>(state.range(0)));
  each_byte(state, [&](const auto& bytes) {
    std::memcpy(to.data(), bytes.data(), bytes.size());
    benchmark::ClobberMemory();
  });
}
BENCHMARK(copy)->Arg(kInCache)->Arg(kInMemory);

void checksum(benchmark::State& state) {
  each_byte(state, [](const auto& bytes) { benchmark::DoNotOptimize(crc64(bytes)); });
}
BENCHMARK(checksum)->Arg(kInCache)->Arg(kInMemory);

/// The digests of a box whose rows have range(1) bytes, of a matrix with rows four times as long.
void box_digest(benchmark::State& state) {
  const auto row = static_cast<std::uint64_t>(state.range(1)) / sizeof(float);
  const std::uint64_t rows = static_cast<std::uint64_t>(state.range(0)) / sizeof(float) / row;
  const ElementMap map({rows, 4 * row}, Box{{0, row}, {rows, row}});
  each_byte(state, [&](const auto& bytes) {
    benchmark::DoNotOptimize(
        digest_elements(map, 4 * row * rows, sizeof(float), {0, map.elements()}, bytes));
  });
}
BENCHMARK(box_digest)->Args({8 << 20, 2048})->Args({8 << 20, 128})->Args({8 << 20, 4});

void statistics_float32(benchmark::State& state) {
  each_byte(state,
            [](const auto& bytes) { benchmark::DoNotOptimize(measure(DType::Float32, bytes)); });
}
BENCHMARK(statistics_float32)->Arg(kInCache);

void statistics_bfloat16(benchmark::State& state) {
  each_byte(state,
            [](const auto& bytes) { benchmark::DoNotOptimize(measure(DType::BFloat16, bytes)); });
}
BENCHMARK(statistics_bfloat16)->Arg(kInCache);

void encode_chunk(benchmark::State& state) {
  detail::ChunkCodec codec;
  each_byte(state, [&](const auto& bytes) {
    benchmark::DoNotOptimize(codec.encode(bytes, sizeof(float), 0).size());
  });
}
BENCHMARK(encode_chunk)->Arg(kInCache);

void decode_chunk(benchmark::State& state) {
  detail::ChunkCodec codec;
  const std::vector<std::byte> bytes = weights(state.range(0));
  const auto encoded = codec.encode(bytes, sizeof(float), 0);
  const std::vector<std::byte> stored(encoded.begin(), encoded.end());
  std::vector<std::byte> out(bytes.size());
  for (auto _ : state) {
    if (!codec.decode(stored, bytes.size(), sizeof(float), out)) state.SkipWithError("damaged");
  }
  if (out != bytes) state.SkipWithError("other bytes");
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(decode_chunk)->Arg(kInCache);

Catalog catalog_of(std::int64_t tensors) {
  test::CheckpointSpec spec;
  spec.world_size = 64;
  spec.layers = static_cast<std::uint32_t>(tensors / 9);
  return test::example_catalog(spec);
}

void plan_all_shards(benchmark::State& state) {
  const Catalog catalog = catalog_of(state.range(0));
  for (auto _ : state) {
    const ShardPlans plans(catalog);
    for (std::uint32_t rank = 0; rank < catalog.world_size; ++rank)
      benchmark::DoNotOptimize(plans.shard(rank).size());
  }
}
BENCHMARK(plan_all_shards)->Arg(1000)->Arg(20000)->Unit(benchmark::kMillisecond);

void read_manifest(benchmark::State& state) {
  Manifest manifest;
  manifest.save_id = std::string(32, '0');
  manifest.tag = "tag";
  manifest.catalog = catalog_of(state.range(0));
  manifest.catalog.world_size = 1;
  manifest.shards.resize(1);
  manifest.shards.front().file = shard_file_name(0, 1);
  for (TensorInfo& tensor : manifest.catalog.tensors) tensor.crc64 = 0;
  const std::string text = encode_manifest(manifest);
  for (auto _ : state) benchmark::DoNotOptimize(decode_manifest(text, "here").tag);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
}
BENCHMARK(read_manifest)->Arg(1000)->Arg(20000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace unishard

BENCHMARK_MAIN();
