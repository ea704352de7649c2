#include "unishard/format/catalog.hpp"

#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "make_checkpoint.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace unishard {
namespace {

struct Defect {
  const char* name;
  std::function<void(Catalog&)> damage;
  const char* words;
};

void PrintTo(const Defect& defect, std::ostream* out) { *out << defect.name; }

class CatalogDefect : public testing::TestWithParam<Defect> {};

TEST_P(CatalogDefect, IsRefusedByName) {
  Catalog catalog = test::example_catalog({.bf16 = true});
  validate(catalog, "here");
  GetParam().damage(catalog);
  EXPECT_THAT(test::error_of([&] { validate(catalog, "here"); }),
              test::Fails(ErrorCode::Corrupt, GetParam().words));
}

INSTANTIATE_TEST_SUITE_P(
    All, CatalogDefect,
    testing::Values(
        Defect{"EmptyName", [](Catalog& c) { c.tensors[0].fqn.clear(); }, "empty name"},
        Defect{"LongName", [](Catalog& c) { c.tensors[0].fqn.assign(5000, 'x'); },
               "longer than 4096"},
        Defect{"NulInName", [](Catalog& c) { c.tensors[0].fqn += '\0'; }, "contains NUL"},
        Defect{"BadUtf8", [](Catalog& c) { c.tensors[0].fqn = "a\xc0\x80"; }, "not UTF-8"},
        Defect{"BadState", [](Catalog& c) { c.tensors[0].state = "../x"; }, "must be 1 to 64 of"},
        Defect{"Duplicate", [](Catalog& c) { c.tensors.push_back(c.tensors[0]); }, "occurs twice"},
        Defect{"TooManyDimensions", [](Catalog& c) { c.tensors[0].shape.assign(65, 1); },
               "dimensions"},
        Defect{"ShapeOverflow",
               [](Catalog& c) {
                 c.tensors[0].shape = {std::uint64_t{1} << 40, std::uint64_t{1} << 40};
               },
               "out of range"},
        Defect{"UnknownGroup", [](Catalog& c) { c.tensors[0].group = 9; }, "does not exist"},
        Defect{"AliasOfNothing", [](Catalog& c) { c.aliases[0].target = "gone"; }, "not a tensor"},
        Defect{"AliasTwice", [](Catalog& c) { c.aliases.push_back(c.aliases[0]); },
               "also the name"},
        Defect{"UnitOfNothing", [](Catalog& c) { c.units[0].fqns.push_back("gone"); },
               "not a tensor"},
        Defect{"InTwoUnits", [](Catalog& c) { c.units[1].fqns.push_back(c.units[0].fqns[0]); },
               "in two units"},
        Defect{"DerivedWithoutMaster",
               [](Catalog& c) {
                 std::erase_if(c.tensors, [](const TensorInfo& tensor) {
                   return tensor.fqn == "ln_f.weight" && tensor.state == "fp32";
                 });
               },
               "is derived"},
        Defect{"WorldSizeZero", [](Catalog& c) { c.world_size = 0; }, "world size 0"},
        Defect{"Stage4", [](Catalog& c) { c.stage = 4; }, "ZeRO stage 4"},
        Defect{"NegativeStep", [](Catalog& c) { c.step = -1; }, "negative"},
        Defect{"GroupsObject", [](Catalog& c) { c.groups = Json::object(); }, "must be an array"}),
    [](const auto& row) { return row.param.name; });

TEST(Catalog, IdentityIgnoresOrderWorldSizeAndStage) {
  Catalog a = test::example_catalog({});
  std::uint64_t number = 0;
  for (TensorInfo& tensor : a.tensors) tensor.crc64 = number++;
  Catalog b = a;
  std::reverse(b.tensors.begin(), b.tensors.end());
  b.world_size = 5;
  b.stage = 0;
  ASSERT_TRUE(identity(a).has_value());
  EXPECT_EQ(identity(a), identity(b));
  b.tensors[0].crc64 = 99;
  EXPECT_NE(identity(a), identity(b));
  b.tensors[0].crc64.reset();
  EXPECT_EQ(identity(b), std::nullopt);
}

TEST(Catalog, CountsParametersOnceAndBuffersNever) {
  const Catalog catalog = test::example_catalog({.bf16 = true});
  const std::uint64_t parameters = 64 * 32 + 32 + 2 * (32 * 96 + 97 + 1) + 17 * 3;
  EXPECT_EQ(catalog.parameter_count(), parameters);
  EXPECT_EQ(catalog.stored_bytes(), (parameters - 51) * 12 + 51 * 2 + 35 + 8);
  EXPECT_EQ(catalog.tensors[*catalog.find("h.1.scale", "exp_avg")].label(), "h.1.scale [exp_avg]");
  EXPECT_EQ(catalog.find("h.1.scale", "nothing"), std::nullopt);
}

}  // namespace
}  // namespace unishard
