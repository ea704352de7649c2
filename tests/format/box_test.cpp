#include "unishard/format/box.hpp"

#include "unishard/format/coverage.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/fragment_digest.hpp"

#include "expect.hpp"
#include "random_parts.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace unishard {
namespace {

using testing::HasSubstr;

/// Returns the elements of a fragment, found index by index.
std::vector<std::uint64_t> elements_of(const Shape& shape, const Fragment& fragment) {
  std::vector<std::uint64_t> elements;
  for (std::uint64_t element = 0; element < element_count(shape); ++element) {
    bool is_inside = fragment.box != nullptr ||
                     (fragment.range.begin <= element && element < fragment.range.end);
    std::uint64_t rest = element;
    for (std::size_t axis = shape.size(); fragment.box && axis-- > 0; rest /= shape[axis]) {
      const std::uint64_t index = rest % shape[axis], offset = fragment.box->offsets[axis];
      is_inside &= offset <= index && index < offset + fragment.box->sizes[axis];
    }
    if (is_inside) elements.push_back(element);
  }
  return elements;
}

ElementMap map_of(const Shape& shape, const Fragment& fragment) {
  return {shape, fragment.range, fragment.box ? BoxView(*fragment.box) : BoxView()};
}

struct Case {
  TensorInfo tensor;
  std::vector<Fragment> parts;
};

Case random_case(std::uint64_t seed, std::size_t cuts) {
  std::mt19937_64 random(seed);
  Case made{test::weight("w", DType::Float32, test::random_shape(random, 5, 400)), {}};
  made.parts = test::random_parts(random, 0, made.tensor, random() % (cuts + 1));
  return made;
}

RC_GTEST_PROP(ElementMap, AgreesWithCountingTheElements, (std::uint64_t seed)) {
  const auto [tensor, parts] = random_case(seed, 6);
  for (const Fragment& part : parts) {
    const std::vector<std::uint64_t> expected = elements_of(tensor.shape, part);
    const ElementMap map = map_of(tensor.shape, part);
    RC_ASSERT(map.elements() == expected.size());
    RC_ASSERT(map.bounds() == (ElementRange{expected.front(), expected.back() + 1}));
    RC_ASSERT(map.is_range() == (expected.back() - expected.front() + 1 == expected.size()));
    for (std::uint64_t own = 0; own < expected.size(); ++own)
      RC_ASSERT(map.element(own) == expected[own]);
    for (std::uint64_t element = 0; element <= tensor.elements(); ++element) {
      const auto before = std::ranges::lower_bound(expected, element) - expected.begin();
      RC_ASSERT(map.own_before(element) == static_cast<std::uint64_t>(before));
    }
    const std::uint64_t begin = seed % expected.size();
    std::uint64_t own = begin;
    map.each_run({begin, expected.size()}, [&](std::uint64_t first, ElementRange run) {
      RC_ASSERT(first == own);
      RC_ASSERT(run.size() <= map.run_elements());
      for (; run.begin < run.end; ++run.begin) RC_ASSERT(run.begin == expected[own++]);
    });
    RC_ASSERT(own == expected.size());
  }
}

TEST(Box, SaysWhyItIsNone) {
  const Shape shape = {4, 6};
  EXPECT_EQ(box_problem(shape, Box{{1, 2}, {3, 4}}), std::nullopt);
  EXPECT_THAT(*box_problem(shape, Box{{1, 3}, {3, 4}}), HasSubstr("axis 1, which has 6"));
  EXPECT_THAT(*box_problem(shape, Box{{~std::uint64_t{0}, 0}, {2, 6}}), HasSubstr("axis 0"));
  EXPECT_THAT(*box_problem(shape, Box{{0, 0}, {0, 6}}), HasSubstr("no elements on axis 0"));
  EXPECT_THAT(*box_problem(shape, Box{{0}, {4}}), HasSubstr("1 axes in a tensor of 2"));
  EXPECT_THAT(*box_problem({}, Box{}), HasSubstr("0 axes"));
  EXPECT_THAT(*box_problem(Shape(8, 2), Box{Shape(8, 0), Shape(8, 1)}),
              HasSubstr("cut along 8 axes; at most 6"));
  EXPECT_EQ(to_text(Box{{1, 2}, {3, 4}}), "[1:4, 2:6]");
}

RC_GTEST_PROP(FragmentDigest, AddsUpToTheDigestOfTheTensor, (std::uint64_t seed)) {
  const auto [tensor, parts] = random_case(seed, 6);
  constexpr std::uint64_t kWidth = 4;
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(tensor.elements() * kWidth);
  std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
  std::uint64_t total = crc64_zeros(bytes.size());
  for (const Fragment& part : parts) {
    const ElementMap map = map_of(tensor.shape, part);
    std::vector<std::byte> own;
    for (const std::uint64_t element : elements_of(tensor.shape, part)) {
      const auto value = std::span(bytes).subspan(element * kWidth, kWidth);
      own.insert(own.end(), value.begin(), value.end());
    }
    // In two pieces, cut anywhere.
    const std::uint64_t cut = random() % (map.elements() + 1);
    const auto first = digest_elements(map, tensor.elements(), kWidth, {0, cut},
                                       std::span(own).first(cut * kWidth));
    const auto second = digest_elements(map, tensor.elements(), kWidth, {cut, map.elements()},
                                        std::span(own).subspan(cut * kWidth));
    RC_ASSERT(crc64_combine(first.crc64, second.crc64, own.size() - cut * kWidth) == crc64(own));
    if (map.is_range()) {
      RC_ASSERT(
          (first.contribution ^ second.contribution) ==
          crc64_contribution(crc64(own), own.size(), bytes.size() - map.bounds().end * kWidth));
    }
    total ^= first.contribution ^ second.contribution;
  }
  RC_ASSERT(total == crc64(bytes));
}

// The example of SPEC.md, section "Checksums".
TEST(FragmentDigest, IsThatOfTheWorkedExample) {
  const ElementMap left({2, 4}, Box{{0, 0}, {2, 2}}), right({2, 4}, Box{{0, 2}, {2, 2}});
  const auto digest = [](const ElementMap& map, std::string_view bytes) {
    return digest_elements(map, 8, 1, {0, 4}, std::as_bytes(std::span(bytes)));
  };
  EXPECT_EQ(hex64(digest(left, "1256").crc64), "52650b82ab145bd8");
  EXPECT_EQ(hex64(digest(left, "1256").contribution), "1423fc58b18a712c");
  EXPECT_EQ(hex64(digest(right, "3478").contribution), "fec20f75d8a4c3e5");
  EXPECT_EQ(hex64(crc64_zeros(8)), "b66a73654282cac0");
  EXPECT_EQ(hex64(crc64("12345678")), "5c8b80482bac7809");
  EXPECT_EQ(digest(left, "1256").contribution ^ digest(right, "3478").contribution ^ crc64_zeros(8),
            crc64("12345678"));
}

/// Returns how often each element is held.
std::vector<int> counts_of(const Case& made) {
  std::vector<int> counts(made.tensor.elements());
  for (const Fragment& part : made.parts)
    for (const std::uint64_t element : elements_of(made.tensor.shape, part)) ++counts[element];
  return counts;
}

std::optional<CoverageFault> fault_of(const Case& made) {
  std::vector<HeldPart> parts;
  for (const Fragment& part : made.parts)
    parts.push_back({part.range, part.box ? BoxView(*part.box) : BoxView()});
  std::ranges::sort(parts, {}, &HeldPart::range);
  return find_coverage_fault(made.tensor.shape, parts, "w");
}

RC_GTEST_PROP(Coverage, AcceptsEveryPartition, (std::uint64_t seed)) {
  RC_ASSERT(!fault_of(random_case(seed, 12)));
}

RC_GTEST_PROP(Coverage, FindsTheFirstAndTheLastWrongElement, (std::uint64_t seed)) {
  Case made = random_case(seed, 12);
  std::mt19937_64 random(seed);
  for (std::size_t changes = 1 + random() % 3; changes > 0 && !made.parts.empty(); --changes) {
    const std::size_t at = random() % made.parts.size();
    if (random() % 2 == 0) {
      made.parts.push_back(made.parts[at]);
    } else {
      made.parts.erase(made.parts.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  const std::vector<int> counts = counts_of(made);
  const auto is_wrong = [](int count) { return count != 1; };
  const auto first = std::ranges::find_if(counts, is_wrong);
  const auto fault = fault_of(made);
  RC_ASSERT(fault.has_value() == (first != counts.end()));
  if (!fault) return;
  RC_ASSERT(fault->range.begin == static_cast<std::uint64_t>(first - counts.begin()));
  RC_ASSERT(fault->is_missing == (*first == 0));
  if (fault->is_exact) return;
  const auto last = std::find_if(counts.rbegin(), counts.rend(), is_wrong);
  RC_ASSERT(fault->range.end == static_cast<std::uint64_t>(counts.rend() - last));
}

TEST(Coverage, RefusesMoreCutsThanTheLimit) {
  Case made{test::weight("w", DType::Float32, Shape(7, 2)), {}};
  for (std::size_t axis = 0; axis < 7; ++axis) {
    Box box{Shape(7), Shape(7, 2)};
    box.sizes[axis] = 1;
    made.parts.push_back(Fragment::of_box(0, made.tensor, std::move(box)));
  }
  EXPECT_THAT(test::error_of([&] { fault_of(made); }).what(),
              HasSubstr("w: its boxes are cut along 7 axes; at most 6"));
}

// 4,096 boxes of one tensor: a grid along three axes.
TEST(Coverage, OfALargeGridIsFound) {
  Case made{test::weight("w", DType::Float32, {64, 4096, 1024}), {}};
  for (std::uint64_t i = 0; i < 16; ++i)
    for (std::uint64_t j = 0; j < 16; ++j)
      for (std::uint64_t k = 0; k < 16; ++k)
        made.parts.push_back(
            Fragment::of_box(0, made.tensor, {{4 * i, 256 * j, 64 * k}, {4, 256, 64}}));
  EXPECT_FALSE(fault_of(made));
  made.parts.erase(made.parts.begin() + 1000);
  EXPECT_TRUE(fault_of(made)->is_missing);
}

}  // namespace
}  // namespace unishard
