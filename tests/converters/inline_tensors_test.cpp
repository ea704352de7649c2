// Small tensors as JSON, as DeepSpeed's client state holds them.
#include "containers/inline_tensors.hpp"

#include <gtest/gtest.h>

namespace unishard::converters::torch {
namespace {

TEST(InlineTensors, AreTakenOutAndNamed) {
  Json value = {
      {"a",
       Json::array(
           {{{"$type", "torch.Tensor"}, {"dtype", "int16"}, {"shape", {2, 1}}, {"hex", "0100ff7f"}},
            {{"$tensor", "another"}}})}};
  const auto taken = take_inline_tensors(value);
  ASSERT_EQ(taken.size(), 1u);
  const auto& [name, tensor] = *taken.begin();
  EXPECT_EQ(value["a"][0], Json({{"$tensor", name}}));
  EXPECT_EQ(value["a"][1], Json({{"$tensor", "another"}}));
  EXPECT_EQ(tensor.dtype, DType::Int16);
  EXPECT_EQ(tensor.shape, (Shape{2, 1}));
  EXPECT_EQ(tensor.bytes,
            (std::vector<std::byte>{std::byte{1}, std::byte{0}, std::byte{0xff}, std::byte{0x7f}}));
}

TEST(InlineTensors, WhoseBytesDoNotFitStayAsTheyAre) {
  const Json good = {
      {"$type", "torch.Tensor"}, {"dtype", "float32"}, {"shape", {1}}, {"hex", "00000000"}};
  const auto with = [&](const char* key, const Json& wrong) {
    Json value = good;
    value[key] = wrong;
    return value;
  };
  constexpr std::uint64_t kWraps = std::uint64_t{1} << 62;
  for (const Json& wrong :
       {with("dtype", "float31"), with("dtype", 3), with("shape", {2}), with("shape", "1"),
        with("shape", {-1}), with("shape", {kWraps, 4}), with("hex", "000000"),
        with("hex", "0000000x"), with("hex", "0000000"), with("hex", nullptr)}) {
    Json value = wrong;
    EXPECT_TRUE(take_inline_tensors(value).empty()) << wrong;
    EXPECT_EQ(value, wrong);
  }
  Json empty = with("shape", {kWraps});
  empty["hex"] = "";
  EXPECT_TRUE(take_inline_tensors(empty).empty());
}

}  // namespace
}  // namespace unishard::converters::torch
