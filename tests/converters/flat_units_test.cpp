// Units of FSDP1 that are found, and pieces that no units have. The pieces of the tests are cut as
// torch cuts them: unit by unit, each flat parameter into parts of equal size.
#include "formats/dcp/flat_units.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters::dcp {
namespace {

using Model = std::vector<UnitParameter>;

/// Adds the pieces of parameters that lie in one flat parameter, by their places in the model.
void cut(Model& model, const std::vector<std::size_t>& unit, std::uint64_t ranks,
         std::uint64_t alignment) {
  std::vector<std::uint64_t> begins;
  std::uint64_t end = 0;
  for (const std::size_t place : unit) {
    begins.push_back((end + alignment - 1) / alignment * alignment);
    end = begins.back() + model[place].elements;
  }
  const std::uint64_t part = (end + ranks - 1) / ranks;
  for (std::size_t i = 0; i < unit.size(); ++i) {
    UnitParameter& parameter = model[unit[i]];
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      const std::uint64_t from = std::max(begins[i], rank * part),
                          to = std::min(begins[i] + parameter.elements, (rank + 1) * part);
      if (from < to) parameter.pieces.push_back({rank, to - from});
    }
  }
}

Model without_pieces(const std::vector<std::pair<std::string, std::uint64_t>>& parameters) {
  Model model;
  for (const auto& [name, elements] : parameters) model.push_back({name, elements, {}});
  return model;
}

/// An embedding, two blocks and a head, of odd sizes.
Model transformer() {
  return without_pieces({{"embed.weight", 45},
                         {"h.0.norm.weight", 5},
                         {"h.0.norm.bias", 5},
                         {"h.0.up.weight", 35},
                         {"h.0.up.bias", 7},
                         {"h.1.norm.weight", 5},
                         {"h.1.norm.bias", 5},
                         {"h.1.up.weight", 35},
                         {"h.1.up.bias", 7},
                         {"norm.weight", 5},
                         {"head.weight", 45}});
}

using Units = std::vector<std::vector<std::size_t>>;
const Units kBlocks = {{1, 2, 3, 4}, {5, 6, 7, 8}, {0, 9, 10}};

Model cut_into(const Units& units, std::uint64_t ranks, std::uint64_t alignment) {
  Model model = transformer();
  for (const auto& unit : units) cut(model, unit, ranks, alignment);
  return model;
}

TEST(FlatUnits, OfAnyModulesAndOfAnyAlignmentExist) {
  const std::vector<Units> wrapped = {
      {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},              // the model alone
      kBlocks,                                           // each block
      {{1, 2}, {3, 4}, {5, 6}, {7, 8}, {0, 9, 10}},      // each leaf of the blocks
      {{1, 2}, {3, 4}, {5, 6, 7, 8}, {0, 9, 10}},        // a block without an own unit
      {{3, 4}, {1, 2}, {7, 8}, {5, 6}, {0}, {9}, {10}},  // blocks around inner units
      {{1, 2, 3, 4, 5, 6, 7, 8}, {0}, {9, 10}},          // all blocks as one
      {{3, 4}, {7, 8}, {0, 1, 2, 5, 6, 9, 10}}};         // the linear layers
  for (const Units& units : wrapped) {
    for (const std::uint64_t alignment : {1u, 2u, 4u, 8u}) {
      for (const std::uint64_t ranks : {1u, 2u, 3u, 4u, 7u, 64u}) {
        EXPECT_EQ(find_flat_units(cut_into(units, ranks, alignment), ranks), FlatUnits::Exist)
            << alignment << " " << ranks << " " << &units - wrapped.data();
      }
    }
  }
}

TEST(FlatUnits, OfTwoAlignmentsExist) {
  Model model = transformer();
  cut(model, kBlocks[0], 3, 4);
  cut(model, kBlocks[1], 3, 8);
  cut(model, kBlocks[2], 3, 8);
  EXPECT_EQ(find_flat_units(model, 3), FlatUnits::Exist);
}

TEST(FlatUnits, WithFrozenParametersExist) {
  for (const std::vector<std::size_t>& frozen :
       std::vector<std::vector<std::size_t>>{{0}, {1, 2, 3, 4}, {1, 5, 9}, {0, 3, 7, 10}, {2, 4}}) {
    for (const Units& units : std::vector<Units>{kBlocks, {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}}) {
      Model model = cut_into(units, 3, 4);
      for (const std::size_t place : frozen) model[place].pieces.clear();
      EXPECT_EQ(find_flat_units(model, 3), FlatUnits::Exist) << frozen.front();
    }
  }
}

TEST(FlatUnits, BesideBuffersAndTiedParametersExist) {
  Model model = without_pieces(
      {{"embed", 12}, {"h.0.mask", 9}, {"h.0.w", 7}, {"h.0.freq", 3}, {"h.0.v", 6}, {"tied", 12}});
  cut(model, {2, 4}, 2, 4);
  cut(model, {0}, 2, 4);
  EXPECT_EQ(find_flat_units(model, 2), FlatUnits::Exist);
}

TEST(FlatUnits, OfAnotherOrderOfParametersAreMissing) {
  for (const std::uint64_t ranks : {2u, 3u, 4u}) {
    for (const std::uint64_t alignment : {1u, 4u}) {
      Model model = transformer();
      cut(model, {4, 3, 2, 1}, ranks, alignment);
      cut(model, kBlocks[1], ranks, alignment);
      cut(model, kBlocks[2], ranks, alignment);
      EXPECT_EQ(find_flat_units(model, ranks), FlatUnits::Missing) << ranks;
    }
  }
}

TEST(FlatUnits, OfSwappedRanksAreMissing) {
  for (const std::uint64_t ranks : {2u, 3u, 4u}) {
    Model model = cut_into(kBlocks, ranks, 4);
    for (UnitParameter& parameter : model) {
      for (RankPiece& piece : parameter.pieces) piece.rank = (piece.rank + 1) % ranks;
      std::ranges::sort(parameter.pieces, {}, &RankPiece::rank);
    }
    EXPECT_EQ(find_flat_units(model, ranks), FlatUnits::Missing) << ranks;
  }
}

TEST(FlatUnits, ArePartsOfModules) {
  // The first two and the last two of four parameters of one module.
  Model model = without_pieces({{"a", 8}, {"b", 8}, {"c", 8}, {"d", 8}});
  cut(model, {0, 1}, 2, 1);
  cut(model, {2, 3}, 2, 1);
  EXPECT_EQ(find_flat_units(model, 2), FlatUnits::Missing);
  model[0].name = "x.a", model[1].name = "x.b";
  EXPECT_EQ(find_flat_units(model, 2), FlatUnits::Exist);
}

TEST(FlatUnits, OfPiecesThatAreNoRangeAreMissing) {
  const std::vector<std::vector<RankPiece>> cases = {
      {{0, 3}},                          // too few
      {{0, 5}, {1, 5}, {2, 5}},          // too many
      {{0, 6}, {2, 6}},                  // a rank between them has none
      {{0, 2}, {1, 3}, {2, 4}, {3, 3}},  // ranks between them with parts of two sizes
      {{0, 6}, {1, 0}, {2, 6}},          // an empty one
      {{3, 6}, {4, 6}},                  // of a rank that is not there
      {{1, 6}, {2, 6}},                  // nothing lies before the first
      {{0, 2}, {1, 10}},                 // a last piece that is larger than a part
      {{0, ~std::uint64_t{0}}, {1, 13}}};
  for (const auto& pieces : cases) {
    EXPECT_EQ(find_flat_units({{"w", 12, pieces}}, 4), FlatUnits::Missing)
        << &pieces - cases.data();
  }
}

TEST(FlatUnits, OfHugeParametersAreMissingAndDoNotOverflow) {
  const std::uint64_t half = std::uint64_t{1} << 63;
  const Model model = {{"a", half, {}}, {"b", half, {}}, {"w", half, {{1, half}}}};
  EXPECT_EQ(find_flat_units(model, 2), FlatUnits::Missing);
}

TEST(FlatUnits, AreFoundInALargeModel) {
  std::vector<std::pair<std::string, std::uint64_t>> parameters = {{"model.embed", 640'007}};
  Units units;
  std::vector<std::size_t> outer = {0};
  for (std::size_t layer = 0; layer < 60; ++layer) {
    const std::string start = "model.layers." + std::to_string(layer);
    units.emplace_back();
    for (std::size_t expert = 0; expert < 256; ++expert) {
      for (const char* name : {"gate", "up", "down"}) {
        units.back().push_back(parameters.size());
        parameters.emplace_back(
            start + ".mlp.experts." + std::to_string(expert) + "." + name + ".weight", 1'001);
      }
    }
  }
  outer.push_back(parameters.size());
  parameters.emplace_back("model.norm", 1'001);
  units.push_back(outer);
  Model model = without_pieces(parameters);
  for (const auto& unit : units) cut(model, unit, 16, 8);
  EXPECT_EQ(find_flat_units(model, 16), FlatUnits::Exist);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (i % 3 != 1) model[i].pieces.clear();  // frozen
  }
  EXPECT_EQ(find_flat_units(model, 16), FlatUnits::Exist);
}

TEST(FlatUnits, AreFoundBesideManyFrozenParametersOfOneUnit) {
  std::vector<std::pair<std::string, std::uint64_t>> parameters;
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < 300; ++i) {
    all.push_back(i);
    parameters.emplace_back("h." + std::to_string(i / 3) + "." + std::to_string(i % 3),
                            (i % 3 == 2 ? 16 : 1'000) + i * i);
  }
  Model model = without_pieces(parameters);
  cut(model, all, 8, 8);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i % 3 != 2) model[i].pieces.clear();
  }
  EXPECT_EQ(find_flat_units(model, 8), FlatUnits::Exist);
}

TEST(FlatUnits, AreUndecidedWhenTheSearchIsTooLong) {
  Model model = cut_into(kBlocks, 3, 4);
  EXPECT_EQ(find_flat_units(model, 3, 10), FlatUnits::Undecided);
  std::string deep;
  for (int level = 0; level < 1'000; ++level) deep += "a.";
  model[0].name = deep + "w";
  EXPECT_EQ(find_flat_units(model, 3), FlatUnits::Undecided);

  // All sums of powers of two are sizes of what lies before the last parameter, but none fits.
  Model hostile;
  for (int i = 0; i < 50; ++i)
    hostile.push_back({"m" + std::to_string(i) + ".w", std::uint64_t{1} << i, {}});
  hostile.push_back({"w", 10, {{1, 4}, {2, 6}}});
  hostile.push_back({"v", 10, {{0, 10}}});
  EXPECT_EQ(find_flat_units(hostile, 4), FlatUnits::Undecided);
}

}  // namespace
}  // namespace unishard::converters::dcp
