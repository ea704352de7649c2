#include "checkpoint/foreign_view.hpp"

#include "unishard/format/error.hpp"

#include "expect.hpp"

#include <gtest/gtest.h>

namespace unishard::trainer::detail {
namespace {

const ForeignNames kNames{
    .prefixes = {"net.", "module."}, .ignored = {"*.mask"}, .transposable = {"*.linear"}};

TensorInfo tensor(std::string fqn, Shape shape) {
  return {.fqn = std::move(fqn),
          .state = std::string(state::kWeights),
          .shape = std::move(shape),
          .crc64 = {},
          .stats = {}};
}

Catalog catalog(std::vector<TensorInfo> tensors, std::vector<Alias> aliases = {}) {
  Catalog made;
  made.tensors = std::move(tensors);
  made.aliases = std::move(aliases);
  return made;
}

const Catalog kWanted =
    catalog({tensor("in", {5, 2}), tensor("a.linear", {2, 6}), tensor("b.linear", {2, 2})},
            {{"out", "in"}});

ForeignView view(const Catalog& saved) { return view_foreign(saved, kWanted, kNames); }

std::vector<std::string> names_of(const ForeignView& view) {
  std::vector<std::string> names;
  for (const TensorInfo& each : view.catalog.tensors) names.push_back(each.fqn);
  return names;
}

void expect_refused(const Catalog& saved, const Catalog& wanted, const char* message) {
  EXPECT_THAT(test::error_of([&] { view_foreign(saved, wanted, kNames); }),
              test::Fails(ErrorCode::Mismatch, testing::StrEq(message)));
}

using Names = std::vector<std::string>;

TEST(ForeignView, PrefixesComeOffWhereTheRestIsKnown) {
  const ForeignView seen = view(catalog(
      {tensor("module.net.in", {5, 2}), tensor("a.linear", {2, 6}), tensor("net.other", {1})}));
  EXPECT_EQ(names_of(seen), (Names{"in", "a.linear", "net.other"}));
  EXPECT_TRUE(seen.notes.empty());
  EXPECT_TRUE(seen.copies.empty());
}

TEST(ForeignView, APartOfTheModelLacksAPrefix) {
  ForeignNames names = kNames;
  names.missing_prefix = "a.";
  const ForeignView seen =
      view_foreign(catalog({tensor("linear", {2, 6}), tensor("in", {5, 2}), tensor("other", {1})}),
                   kWanted, names);
  EXPECT_EQ(names_of(seen), (Names{"a.linear", "in", "other"}));
}

TEST(ForeignView, IgnoredTensorsAreNotedAndIndicesStayTheFiles) {
  const ForeignView seen = view(catalog({tensor("net.a.mask", {1}), tensor("net.in", {5, 2}),
                                         tensor("b.mask", {1}), tensor("net.a.linear", {2, 6})},
                                        {{"net.c.mask", "net.a.mask"}}));
  EXPECT_EQ(names_of(seen), (Names{"in", "a.linear"}));
  ASSERT_EQ(seen.places.size(), 2u);
  EXPECT_EQ(seen.places[0].tensor, 1u);
  EXPECT_EQ(seen.places[1].tensor, 3u);
  EXPECT_TRUE(seen.catalog.aliases.empty());
  EXPECT_EQ(seen.notes,
            Names{"left out, as no state of the model: net.a.mask, b.mask, net.c.mask"});
}

TEST(ForeignView, TiedWeightsGoByTheEnginesName) {
  const ForeignView only_head = view(catalog({tensor("net.out", {5, 2})}));
  EXPECT_EQ(names_of(only_head), Names{"in"});
  const ForeignView aliased = view(catalog({tensor("out", {5, 2})}, {{"net.in", "out"}}));
  EXPECT_EQ(names_of(aliased), Names{"in"});
  EXPECT_TRUE(aliased.catalog.aliases.empty());
  const ForeignView both = view(catalog({tensor("out", {5, 2}), tensor("net.in", {5, 2})}));
  EXPECT_EQ(names_of(both), Names{"in"});
  ASSERT_EQ(both.copies.size(), 1u);
  EXPECT_EQ(both.copies[0].tensor, 1u);
  EXPECT_EQ(both.copies[0].of, 0u);
  EXPECT_EQ(both.notes, Names{"net.in is a copy of out"});
}

TEST(ForeignView, ACopyOfAnotherShapeIsAMismatch) {
  expect_refused(
      catalog({tensor("in", {5, 2}), tensor("out", {7, 2})}), kWanted,
      "out [weights] and in [weights] are one tensor in this model, and are float32 [7, 2] "
      "and float32 [5, 2] in the checkpoint");
}

TEST(ForeignView, OtherMatricesTellHowASquareOneLies) {
  const ForeignView turned =
      view(catalog({tensor("net.b.linear", {2, 2}), tensor("net.a.linear", {6, 2})}));
  EXPECT_TRUE(turned.places[0].transposed);
  EXPECT_TRUE(turned.places[1].transposed);
  EXPECT_EQ(turned.catalog.tensors[1].shape, (Shape{2, 6}));
  EXPECT_EQ(turned.notes, Names{"2 matrices are stored as their transpose, as a.linear"});
  const ForeignView straight =
      view(catalog({tensor("b.linear", {2, 2}), tensor("a.linear", {2, 6})}));
  EXPECT_FALSE(straight.places[0].transposed);
  EXPECT_FALSE(straight.places[1].transposed);
}

TEST(ForeignView, TensorsThatAreNotDeclaredNeverTurn) {
  const ForeignView seen = view(catalog({tensor("in", {2, 5}), tensor("a.linear", {6, 2})}));
  EXPECT_FALSE(seen.places[0].transposed);
  EXPECT_EQ(seen.catalog.tensors[0].shape, (Shape{2, 5}));
}

TEST(ForeignView, ALayoutThatCannotBeToldIsRefused) {
  const Catalog square = catalog({tensor("a.linear", {2, 2}), tensor("b.linear", {3, 3})});
  expect_refused(square, square,
                 "cannot tell whether the checkpoint has a.linear [weights] or its transpose: the "
                 "matrices of the model are all square");
  // what is missing is for the comparison to say
  EXPECT_NO_THROW(view(catalog({tensor("b.linear", {2, 2})})));
  const Catalog two = catalog({tensor("a.linear", {2, 6}), tensor("b.linear", {3, 4})});
  expect_refused(
      catalog({tensor("a.linear", {2, 6}), tensor("b.linear", {4, 3})}), two,
      "the checkpoint has the transpose of b.linear, but a.linear as it is here: one of them "
      "is another matrix");
}

}  // namespace
}  // namespace unishard::trainer::detail
