// What the thread blocks of a device would work on: the launches of an update and of the gradients
// have every element once, with its rule and its gradient.
#include "optimizer/update_launch.hpp"
#include "runtime/gradient_launch.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <vector>

namespace unishard::trainer::detail {
namespace {

/// Calls use(range, element) for every element of every thread block.
template <class Ranges, class Use>
void for_each_element(const Ranges& ranges, const Use& use) {
  for (std::uint32_t block = 0; block < ranges.blocks; ++block) {
    const std::uint32_t index = ranges.of_block(block);
    const std::size_t begin = ranges.begin_of(block, index), end = ranges.end_of(begin, index);
    ASSERT_LT(begin, end) << "a block without elements";
    for (std::size_t i = begin; i < end; ++i) use(ranges.ranges[index], i);
  }
}

RuleSegment segment_of(std::size_t begin, std::size_t count, std::size_t group) {
  const Hyper hyper{.lr = 1e-3 * static_cast<double>(group + 1)};
  const Optimizer optimizer = *make_optimizer(group % 3 == 2 ? "Lion" : "AdamW", hyper);
  return {begin, count, rule_for(optimizer, hyper, 7, 0.5F)};
}

double rate_of(const Rule& rule) {
  if (const auto* const adam = std::get_if<AdamRule>(&rule)) return adam->step_size;
  return std::get<LionRule>(rule).lr;
}

TEST(UpdateLaunches, HaveEveryElementOnceWithItsRule) {
  std::mt19937 random(5);
  for (const std::size_t groups : {1u, 2u, 9u, 40u}) {
    for (const std::size_t parts : {1u, 12u, 64u, 65u, 300u}) {
      SCOPED_TRACE(std::to_string(groups) + " groups, " + std::to_string(parts) + " segments");
      std::vector<RuleSegment> segments;
      std::map<std::size_t, double> expected;
      std::size_t begin = 3;
      for (std::size_t i = 0; i < parts; ++i) {
        const std::size_t count = i % 7 == 3 ? 0 : random() % (i % 5 == 0 ? 9000 : 40);
        segments.push_back(segment_of(begin, count, random() % groups));
        for (std::size_t e = begin; e < begin + count; ++e)
          expected[e] = rate_of(segments.back().rule);
        begin += count + random() % 3;
      }
      std::map<std::size_t, double> found;
      std::size_t launches = 0;
      for_each_launch_of_any(segments, [&](const auto& launch) {
        ++launches;
        for_each_element(launch.parts, [&](const UpdateRange& range, std::size_t i) {
          const bool is_new = found.emplace(i, rate_of(launch.rules[range.rule].rule)).second;
          EXPECT_TRUE(is_new) << "element " << i << " twice";
        });
      });
      EXPECT_EQ(found, expected);
      if (groups <= 2 && parts <= 64) {
        EXPECT_EQ(launches, 1u);
      }
    }
  }
}

TEST(GradientLaunches, HaveEveryElementOnceWithItsGradient) {
  std::mt19937 random(6);
  const std::vector<float> memory(1'000'000);
  for (const std::size_t parts : {0u, 1u, 12u, 31u, 32u, 200u}) {
    for (const bool only_sources : {false, true}) {
      SCOPED_TRACE(std::to_string(parts) + (only_sources ? " sources alone" : " sources"));
      std::vector<GradientSource> sources;
      std::map<std::size_t, const float*> expected;
      std::size_t begin = 0;
      for (std::size_t i = 0; i < parts; ++i) {
        const std::size_t gap = random() % 3, count = random() % (i % 4 == 0 ? 9000 : 40);
        begin += gap;
        sources.push_back({begin, count, memory.data() + begin});
        for (std::size_t e = begin; e < begin + count; ++e) expected[e] = memory.data() + e;
        begin += count;
      }
      const std::size_t elements = begin + 17;
      if (!only_sources)
        for (std::size_t e = 0; e < elements; ++e) expected.emplace(e, nullptr);
      std::map<std::size_t, const float*> found;
      for_each_gradient_launch(sources, elements, only_sources, [&](const GradientLaunch& launch) {
        for_each_element(launch, [&](const GradientRange& range, std::size_t i) {
          const auto* const values = static_cast<const float*>(range.values);
          const float* const value = values == nullptr ? nullptr : values + (i - range.begin);
          EXPECT_TRUE(found.emplace(i, value).second) << "element " << i << " twice";
        });
      });
      EXPECT_EQ(found, expected);
    }
  }
}

}  // namespace
}  // namespace unishard::trainer::detail
