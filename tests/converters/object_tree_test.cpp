// Objects of pickles as JSON: what cannot be written out costs nothing else.
#include "containers/object_tree.hpp"

#include "containers/pickle_json.hpp"
#include "expect.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace unishard::converters::torch {
namespace {

using test::error_of;
using test::Fails;
using testing::ElementsAre;
using testing::HasSubstr;
using namespace std::string_literals;

std::string text(const std::string& value) {
  return "X" + std::string(1, static_cast<char>(value.size())) + std::string(3, '\0') + value;
}

/// Opcodes of values that no JSON holds, by name.
std::map<std::string, std::string> endless() {
  std::string itself("]q\0h\0a", 6), deep, shared("K\1", 2);
  for (int i = 0; i < 250; ++i) deep += "]";
  for (int i = 1; i < 250; ++i) deep += "a";
  for (int i = 0; i < 60; ++i) shared += "2\x86";  // a pair of the value above, twice
  return {{"itself", itself}, {"deep", deep}, {"shared", shared}};
}

std::unique_ptr<Pickle> parse(const std::string& value) {
  return Pickle::parse("\x80\x02" + value + ".", "x");
}

std::string dict(const std::map<std::string, std::string>& members) {
  std::string out = "}(";
  for (const auto& [key, value] : members) out += text(key) + value;
  return out + "u";
}

/// Python reads the last of two values, and writes one.
TEST(Pickle, WithAKeyTwiceInADictIsRefused) {
  const std::string one = text("w") + "K\1", two = text("w") + "K\2", number = "K\7K\1";
  EXPECT_THAT(error_of([&] { parse("}(" + one + text("v") + "K\3" + two + "u"); }),
              Fails(ErrorCode::Corrupt, {"x: a dict has the key \"w\" twice"}));
  EXPECT_THAT(error_of([&] { parse("}(" + one + "u" + two + "s"); }),
              Fails(ErrorCode::Corrupt, {"\"w\" twice"}));
  EXPECT_THAT(error_of([&] { parse("}(" + number + number + "u"); }),
              Fails(ErrorCode::Corrupt, {"the key 7 twice"}));
  EXPECT_THAT(error_of([&] { parse("}(K\1K\1\x88K\2u"); }),
              Fails(ErrorCode::Corrupt, {"the key 1 twice"}))
      << "True is 1 in Python";
  EXPECT_EQ(parse("}(" + one + number + text("v") + "}(" + one + "uu")->root().pair_count(), 3u);
}

TEST(ObjectTree, LeavesOutAMemberThatCannotBeWrittenOut) {
  for (const auto& [name, value] : endless()) {
    const auto pickle =
        parse(dict({{"a", "K\5"}, {"odd", value}, {"z", dict({{"y", "K\6"}, {"odd", value}})}}));
    const ObjectTree tree = describe(pickle->root(), pickle->bytes().size());
    EXPECT_EQ(tree.content, (Json{{"a", 5}, {"z", {{"y", 6}}}})) << name;
    EXPECT_THAT(tree.left_out, ElementsAre(testing::Pair("odd", testing::Ne("")),
                                           testing::Pair("z.odd", testing::Ne(""))));
  }
}

TEST(ObjectTree, ReadsTheValuesOfOmegaConfAndOfEnumerations) {
  const auto node = [](const std::string& value) {
    return "comegaconf.nodes\nAnyNode\n)\x81" + dict({{"_val", value}}) + "b";
  };
  const auto container = [](const std::string& type, const std::string& content) {
    return "comegaconf." + type + "\n)\x81q\1" + dict({{"_content", content}, {"_parent", "h\1"}}) +
           "b";  // it contains itself
  };
  const std::string list =
      container("listconfig\nListConfig", "](" + node("K\1") + node("K\2") + "e");
  const auto pickle = parse(dict(
      {{"betas", list},
       {"config", container("dictconfig\nDictConfig", dict({{"lr", node("K\3")}, {"b", list}}))},
       {"kind", "c__main__\nColor\n(K\4tR"},
       {"made", "cmy\nfunction\n(K\5tR"},
       {"of_two", "cmy\nPair\n(K\6K\7tR"}}));
  const ObjectTree tree = describe(pickle->root(), pickle->bytes().size());
  EXPECT_EQ(tree.content["betas"], Json({1, 2}));
  EXPECT_EQ(tree.content["config"], (Json{{"b", {1, 2}}, {"lr", 3}}));
  EXPECT_EQ(tree.content["kind"], 4);
  EXPECT_EQ(tree.content["made"]["$type"], "object");
  EXPECT_EQ(tree.content["of_two"]["$type"], "object");
  EXPECT_THAT(tree.opaque,
              ElementsAre("betas: omegaconf.listconfig.ListConfig, of which the values are read",
                          "config: omegaconf.dictconfig.DictConfig, of which the values are read",
                          "kind: __main__.Color, of which the value is read", "made: my.function",
                          "of_two: my.Pair"));
}

TEST(ObjectTree, RefusesAValueThatIsNothingElse) {
  for (const auto& [name, value] : endless()) {
    const auto pickle = parse(value);
    EXPECT_THROW(describe(pickle->root(), pickle->bytes().size()), EndlessObject) << name;
    EXPECT_THAT(error_of([&] { to_json(pickle->root(), "here"); }),
                Fails(ErrorCode::Corrupt, "here"));
  }
}

TEST(ObjectTree, NamesTheAttributesOfAnOrdinaryTensor) {
  // _rebuild_parameter_with_state(0, False, None, {"scale": 1})
  const auto parameter = [](const std::string& attributes) {
    return "ctorch._utils\n_rebuild_parameter_with_state\n(K\0"s + "\x89N" + attributes + "tR";
  };
  const std::string mark_of_fsdp = dict({{"_has_been_cloned", "K\1"}});
  const auto pickle =
      parse(dict({{"w", parameter(dict({{"scale", "K\1"}}))}, {"x", parameter(mark_of_fsdp)}}));
  const ObjectTree tree = describe(pickle->root(), pickle->bytes().size());
  EXPECT_THAT(tree.attributes, ElementsAre("w: scale"));
}

TEST(ObjectTree, NamesWhatAModuleHoldsWhereItsStateDictDoesNotLook) {
  const std::string parameter = "ctorch._utils\n_rebuild_parameter\n(K\0"s + "\x89NtR";
  const std::string plain = "ctorch._utils\n_rebuild_tensor_v2\n(K\0tR"s;
  const std::string quantized = "ctorch._utils\n_rebuild_qtensor\n(K\0tR"s;
  const auto module = [](std::map<std::string, std::string> fields) {
    for (const char* part : {"_parameters", "_buffers", "_modules"}) fields.emplace(part, "}");
    return "cm\nM\n)\x81" + dict(fields) + "b";
  };
  const std::string inner = module({{"_parameters", dict({{"v", parameter}})}});
  const auto pickle = parse(module({{"_parameters", dict({{"w", parameter + "q\1"}})},
                                    {"codebook", plain},
                                    {"flat", "](h\1e"},  // the parameter above
                                    {"layers", "](" + inner + "e"},
                                    {"packed", "cm\nScript\n(" + quantized + "tR"}}));
  const ObjectTree tree = describe(pickle->root(), pickle->bytes().size());
  ASSERT_EQ(tree.tensors.size(), 1u);
  EXPECT_THAT(tree.unregistered, ElementsAre("codebook"));
  ASSERT_EQ(tree.lost_weights.size(), 2u);
  EXPECT_EQ(tree.lost_weights[0].first, "layers.0.v");
  EXPECT_EQ(tree.lost_weights[1].first, "packed.0");
  EXPECT_THAT(tree.lost_weights[1].second, testing::StartsWith("a quantized tensor"));
}

/// The older container of torch.save keeps the class of a module with its source.
TEST(ObjectTree, NamesTheClassOfAModuleThatHasItsSource) {
  const std::string type =
      "(" + text("module") + "cm\nM\n" + text("m.py") + text("class M: pass") + "tQ";
  const std::string fields = dict({{"_parameters", "}"}, {"_buffers", "}"}, {"_modules", "}"}});
  const auto pickle = parse(type + ")\x81" + fields + "b");
  EXPECT_EQ(describe(pickle->root(), pickle->bytes().size()).content["name"], "m.M");
}

TEST(ObjectTree, RefusesVeryManySuchMembers) {
  std::map<std::string, std::string> members;
  for (int i = 0; i < 40; ++i) members[std::to_string(i)] = endless()["shared"];
  const auto pickle = parse(dict(members));
  EXPECT_THROW(describe(pickle->root(), pickle->bytes().size()), EndlessObject);
}

Json defaults(const Json& factory, const Json& pairs) {
  return {{"$type", "collections.defaultdict"},
          {"pairs", pairs},
          {"args", {{"$type", "tuple"}, {"items", Json::array({factory})}}}};
}

TEST(PickledJson, KeepsDefaultDictsAndCounters) {
  const Json pairs = Json::array({Json::array({"a", Json::array({1})})});
  const Json counter = {{"$type", "collections.Counter"},
                        {"pairs", Json::array({Json::array({"a", 2}), Json::array({"b", 1})})}};
  for (const Json& value :
       {defaults({{"$type", "global"}, {"name", "builtins.list"}}, pairs),
        defaults({{"$type", "global"}, {"name", "builtins.int"}}, Json::array()), counter}) {
    PickleWriter writer;
    write_json(writer, value, refuse_tensor);
    const auto pickle = Pickle::parse(writer.finish(), "x");
    EXPECT_EQ(to_json(pickle->root()), value);
  }
}

TEST(PickledJson, NamesTheFactoryThatItCannotWriteAndKeepsTheDict) {
  const Json pairs = Json::array({Json::array({"a", 1})});
  const Json object = {{"counts", defaults({{"$type", "global"}, {"name", "os.system"}}, pairs)}};
  std::vector<std::string> dropped;
  const Json kept = without_unwritable(object, "client_state", dropped);
  EXPECT_EQ(kept["counts"]["pairs"], pairs);
  EXPECT_FALSE(kept["counts"].contains("args"));
  EXPECT_THAT(dropped, ElementsAre(HasSubstr("client_state.counts: the factory")));
  PickleWriter writer;
  EXPECT_THAT(error_of([&] { write_json(writer, object, refuse_tensor); }),
              Fails(ErrorCode::Unsupported, "factory"));
}

TEST(PickledJson, ADefaultDictWithFieldsOfOtherTypesLosesItsFactory) {
  const Json pairs = Json::array({Json::array({"a", 1})});
  for (const Json& args : {Json::array({"id"}), Json("id"), Json(1), Json{{"items", 1}},
                           Json{{"items", Json::array({Json::array()})}},
                           Json{{"items", Json::array({{{"$type", 1}, {"name", 2}}})}},
                           Json{{"items", Json::array({{{"$type", "global"}, {"name", 2}}})}}}) {
    const Json object = {{"$type", "collections.defaultdict"}, {"pairs", pairs}, {"args", args}};
    std::vector<std::string> dropped;
    const Json kept = without_unwritable(Json::object({{"counts", object}}), "", dropped);
    EXPECT_EQ(kept["counts"]["pairs"], pairs) << args;
    EXPECT_THAT(dropped, ElementsAre(HasSubstr("counts: the factory"))) << args;
  }
}

}  // namespace
}  // namespace unishard::converters::torch
