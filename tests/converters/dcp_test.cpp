// PyTorch's distributed checkpoints: real ones of torch 1.13 to 2.15, compared bit by bit with what
// the live model held, hostile ones, and our own through the reader.
#include "unishard/converters/registry.hpp"
#include "unishard/converters/sink.hpp"
#include "unishard/converters/source.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include "containers/boxes.hpp"
#include "expect.hpp"
#include "expected_tensors.hpp"
#include "fixtures.hpp"
#include "formats/dcp/metadata.hpp"
#include "formats/dcp/own_layout.hpp"
#include "formats/dcp/reader.hpp"
#include "formats/dcp/state_dict.hpp"
#include "formats/dcp/state_dict_source.hpp"
#include "read_source.hpp"
#include "source_notes.hpp"
#include "temp_dir.hpp"
#include "torch_files.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <set>

namespace unishard::converters {
namespace {

using test::error_of;
using test::Fails;
using test::fixtures;
using test::flip_bits;
using test::read_file;
using test::read_json;
using test::thrown_by;
using test::write_file;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// The tensors of expected.safetensors and expected.json under their keys.
struct Expected {
  struct Tensor {
    std::string dtype;
    Shape shape;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Tensor> tensors;
};

std::vector<std::byte> from_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < text.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

Expected read_expected(const Path& folder) {
  Expected out;
  const auto source = open_source(posix_storage(), folder / "expected.safetensors");
  for (std::size_t i = 0; i < source->catalog().tensors.size(); ++i) {
    const TensorInfo& info = source->catalog().tensors[i];
    out.tensors[info.fqn] = {std::string(name_of(info.dtype)), info.shape, read_all(*source, i)};
  }
  if (!std::filesystem::exists(folder / "expected.json")) return out;
  const Json other = read_json(folder / "expected.json");
  for (const auto& [name, about] : other.items()) {
    out.tensors[name] = {about["dtype"], about["shape"].get<Shape>(), from_hex(about["hex"])};
  }
  return out;
}

/// The catalog's tensors by "<fqn>|<state>", second names too.
std::map<std::string, std::size_t> by_label(const Catalog& catalog) {
  std::map<std::string, std::size_t> labels;
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i)
    labels[catalog.tensors[i].fqn + "|" + catalog.tensors[i].state] = i;
  for (const Alias& alias : catalog.aliases) {
    for (const char* state : {"|fp32", "|weights"}) {
      if (const auto target = labels.find(alias.target + state); target != labels.end())
        labels[alias.fqn + state] = target->second;
    }
  }
  return labels;
}

/// What the catalog may call the tensor that is expected as `name`.
std::vector<std::string> candidates(const std::string& name) {
  const std::size_t bar = name.rfind('|');
  if (bar == std::string::npos) return {name + "|weights", name + "|buffer"};
  const std::string fqn = name.substr(0, bar), state = name.substr(bar + 1);
  if (state == "weights") return {name, fqn + "|fp32", fqn + "|buffer"};  // no integer is trained
  if (state == "buffer") return {name, fqn + "|weights"};
  return {name};
}

struct Comparison {
  int equal = 0, unnamed = 0;
};

/// Whether some tensor of the catalog has these bytes: for optimizers that have numbers, not names.
bool has_bytes(const Source& source, const std::string& state, const Expected::Tensor& want) {
  const auto& tensors = source.catalog().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].fqn.starts_with("state.") && tensors[i].state == state &&
        tensors[i].shape == want.shape && read_all(source, i) == want.bytes)
      return true;
  }
  return false;
}

/// Element types that UniShard has not are named as lost.
bool is_left_out(const Source& source, const std::string& name) {
  return std::ranges::any_of(source.losses(), [&](const Loss& loss) {
    return loss.name == name && loss.why.starts_with("elements of type");
  });
}

Comparison compare(const Source& source, const Expected& expected) {
  Comparison count;
  const auto labels = by_label(source.catalog());
  for (const auto& [name, want] : expected.tensors) {
    const std::string state = name.substr(name.rfind('|') + 1);
    if (state == "step") {
      float step = 0;
      std::memcpy(&step, want.bytes.data(), sizeof step);
      EXPECT_EQ(static_cast<float>(source.catalog().step), step) << name;
      ++count.equal;
      continue;
    }
    std::string found;
    for (const std::string& label : candidates(name)) {
      if (found.empty() && labels.contains(label)) found = label;
    }
    if (found.empty() && is_left_out(source, name)) continue;
    if (found.empty()) {
      const std::string fqn = name.substr(0, name.rfind('|'));
      // The same weights in float32 are not listed again.
      if (state == "fp32" &&
          (labels.contains(fqn + "|weights") || expected.tensors.contains(fqn + "|weights")))
        continue;
      EXPECT_TRUE(has_bytes(source, state, want)) << name << " is missing";
      ++count.unnamed;
      continue;
    }
    const TensorInfo& info = source.catalog().tensors[labels.at(found)];
    EXPECT_EQ(name_of(info.dtype), want.dtype) << name;
    EXPECT_EQ(info.shape, want.shape) << name;
    EXPECT_EQ(read_all(source, labels.at(found)), want.bytes) << name;
    ++count.equal;
  }
  return count;
}

/// Folders of a case that hold all of its tensors.
std::vector<Path> folders_of(const Path& at) {
  std::vector<Path> folders = {at / "checkpoint"};
  for (const char* other : {"torch_to_dcp"}) {
    if (std::filesystem::exists(at / other)) folders.push_back(at / other);
  }
  return folders;
}

TEST(Dcp, EveryFixtureGivesTheTensorsOfTheLiveModel) {
  SKIP_WITHOUT_FIXTURES();
  int folders = 0, refused = 0, tensors = 0, unnamed = 0;
  for (const Path& at : test::fixture_cases("torch", 90)) {
    const std::string name = at.filename();
    const bool is_ours = name.starts_with("dcp_") || name.starts_with("accelerate_fsdp") ||
                         name.starts_with("fsdp1_") || name.starts_with("dtensor_") ||
                         name == "hf_trainer_plain" || name.find("_dcp_") != std::string::npos;
    if (!is_ours || !std::filesystem::exists(at / "expected.safetensors")) continue;
    SCOPED_TRACE(name);
    const Expected expected = read_expected(at);
    for (const Path& folder : folders_of(at)) {
      // Nothing in its files says which parameters the flat ones are.
      if (name == "fsdp1_local_orig_w3") {
        EXPECT_THAT(error_of([&] { open_source(posix_storage(), folder); }),
                    Fails(ErrorCode::Unsupported, testing::_, Not(IsEmpty())));
        ++refused;
        continue;
      }
      std::unique_ptr<Source> source;
      EXPECT_EQ(thrown_by([&] { source = open_source(posix_storage(), folder); }), std::nullopt)
          << folder;
      if (!source) continue;
      const Comparison count = compare(*source, expected);
      EXPECT_EQ(thrown_by([&] { source->verify_reads(TransferOptions{}); }), std::nullopt);
      ++folders;
      tensors += count.equal;
      unnamed += count.unnamed;
      std::cout << name << ": " << source->format() << ", " << count.equal << " equal, "
                << count.unnamed << " without a name, stage " << source->catalog().stage
                << ", world " << source->catalog().world_size << ", step " << source->catalog().step
                << ", aliases " << source->catalog().aliases.size() << "\n";
      for (const std::string& note : notes_of(*source)) std::cout << "    " << note << "\n";
      EXPECT_THAT(source->notes(), Not(testing::Contains(HasSubstr("gives no name"))));
    }
  }
  EXPECT_GE(folders, 50);
  EXPECT_EQ(refused, 1);
  std::cout << folders << " folders, " << tensors << " tensors equal by name, " << unnamed
            << " by content\n";
}

/// Reads all tensors, in pieces that begin and end inside of rows.
void expect_equal_pieces(const Source& source) {
  for (std::size_t i = 0; i < source.catalog().tensors.size(); ++i) {
    const TensorInfo& info = source.catalog().tensors[i];
    const std::vector<std::byte> whole = read_all(source, i);
    const std::uint64_t width = size_of(info.dtype);
    for (std::uint64_t piece : {1u, 3u, 7u, 64u}) {
      if (info.elements() > 2000 && piece < 7) continue;
      for (std::uint64_t at = 0; at < info.elements(); at += piece) {
        const ElementRange range{at, std::min(at + piece, info.elements())};
        std::vector<std::byte> part(range.size() * width);
        source.read(i, range, part);
        ASSERT_TRUE(std::equal(part.begin(), part.end(),
                               whole.begin() + static_cast<std::ptrdiff_t>(at * width)))
            << info.label() << " from element " << at;
      }
    }
  }
}

TEST(Dcp, AnyRangeOfAnyLayoutIsThatPartOfTheTensor) {
  SKIP_WITHOUT_FIXTURES();
  for (const char* name : {"dcp_dtensor_layouts_w4", "dcp_tp_fsdp_2x2", "dcp_fsdp2_dim1_w3",
                           "dcp_zstd_w2", "dcp_hf_sharded_w3", "dcp_safetensors_items_w2"}) {
    SCOPED_TRACE(name);
    expect_equal_pieces(*open_dcp(posix_storage(), fixtures() / "torch" / name / "checkpoint"));
  }
}

TEST(Dcp, AMissingFileOfARankIsNotASmallerTensor) {
  SKIP_WITHOUT_FIXTURES();
  const Path whole = fixtures() / "torch/dcp_hf_sharded_w3/checkpoint";
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(whole))
    names.push_back(entry.path().filename());
  ASSERT_EQ(names.size(), 6u);
  for (const std::string& name : names) {
    for (const bool is_folder : {false, true}) {
      const test::TempDir temp;
      const Path folder = temp.path() / "cut";
      std::filesystem::copy(whole, folder);
      std::filesystem::remove(folder / name);
      if (is_folder) std::filesystem::create_directory(folder / name);
      EXPECT_THAT(error_of([&] { open_source(posix_storage(), folder); }),
                  Fails(ErrorCode::Corrupt, name))
          << name;
    }
  }
}

TEST(Dcp, HostileFoldersAreRefusedOrReadSafely) {
  SKIP_WITHOUT_FIXTURES();
  const Path folder = fixtures() / "torch" / "hostile";
  const Json manifest = read_json(folder / "manifest.json");
  int refused = 0, read = 0;
  for (const auto& [name, about] : manifest.items()) {
    if (!name.starts_with("dcp_")) continue;
    const std::string must = about["reader_must"];
    const bool may_load = must.starts_with("load") || must.starts_with("report") ||
                          must.starts_with("ignore") || must.find("opaque") != std::string::npos;
    std::unique_ptr<Source> source;
    const auto error = thrown_by([&] {
      source = open_source(posix_storage(), folder / name);
      read_all_tensors(*source);
    });
    if (error) {
      EXPECT_FALSE(must == "load" || must.starts_with("load;")) << name << ": " << error->what();
      EXPECT_NE(error->code(), ErrorCode::Internal) << name;
      EXPECT_THAT(error->what(), HasSubstr(name));
      ++refused;
      std::cout << "REFUSED " << name << ": " << error->what() << "\n";
      continue;
    }
    EXPECT_TRUE(may_load) << name << " was read; a reader must: " << must;
    ++read;
    std::cout << "READ    " << name << ": " << source->catalog().tensors.size()
              << " tensors, client state " << source->catalog().client_state.dump() << "\n";
    for (const std::string& note : notes_of(*source)) std::cout << "        " << note << "\n";
  }
  std::cout << refused << " refused, " << read << " read\n";
  EXPECT_GE(refused + read, 32);
}

void write_dcp(const Source& source, const Path& folder, Catalog catalog, const Json& layout = {},
               std::vector<std::string>* notes = nullptr, std::string_view key_layout = {}) {
  const auto sink = make_dcp_sink(posix_storage(), folder, catalog, {}, layout, key_layout);
  if (notes != nullptr) *notes = sink->notes();
  CopyPlan plan{&source, &catalog, {}};
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) plan.tensor_map.push_back(i);
  copy(plan, *sink, {});
  sink->commit();
}

void write_dcp(const Source& source, const Path& folder, std::uint32_t world_size,
               const Json& layout = {}, std::vector<std::string>* notes = nullptr,
               std::string_view key_layout = {}) {
  Catalog catalog = source.catalog();
  catalog.world_size = world_size;
  write_dcp(source, folder, std::move(catalog), layout, notes, key_layout);
}

void expect_same(const Source& a, const Source& b) {
  ASSERT_EQ(a.catalog().tensors.size(), b.catalog().tensors.size());
  const auto labels = by_label(b.catalog());
  for (std::size_t i = 0; i < a.catalog().tensors.size(); ++i) {
    const TensorInfo& tensor = a.catalog().tensors[i];
    const auto found = labels.find(tensor.fqn + "|" + tensor.state);
    ASSERT_NE(found, labels.end()) << tensor.label();
    const TensorInfo& other = b.catalog().tensors[found->second];
    EXPECT_EQ(name_of(tensor.dtype), name_of(other.dtype)) << tensor.label();
    EXPECT_EQ(tensor.shape, other.shape) << tensor.label();
    EXPECT_EQ(tensor.frozen, other.frozen) << tensor.label();
    EXPECT_EQ(tensor.group, other.group) << tensor.label();
    EXPECT_EQ(read_all(a, i), read_all(b, found->second)) << tensor.label();
  }
  EXPECT_EQ(a.catalog().aliases, b.catalog().aliases);
  EXPECT_EQ(a.catalog().step, b.catalog().step);
  EXPECT_EQ(a.catalog().groups, b.catalog().groups);
  EXPECT_EQ(a.catalog().client_state, b.catalog().client_state);
  EXPECT_EQ(a.catalog().scheduler, b.catalog().scheduler);
  EXPECT_EQ(a.catalog().stage, b.catalog().stage);
}

/// Compares everything but the way in which the tensors are cut.
void expect_same_keys(const Source& source, const Source& copy) {
  ASSERT_EQ(copy.catalog().tensors.size(), source.catalog().tensors.size());
  for (std::size_t i = 0; i < source.catalog().tensors.size(); ++i) {
    EXPECT_EQ(copy.catalog().tensors[i].label(), source.catalog().tensors[i].label());
    EXPECT_EQ(read_all(copy, i), read_all(source, i)) << source.catalog().tensors[i].label();
  }
  EXPECT_EQ(copy.layout(), source.layout());
  EXPECT_EQ(copy.catalog().groups, source.catalog().groups);
  EXPECT_EQ(copy.catalog().client_state, source.catalog().client_state);
  EXPECT_EQ(copy.catalog().aliases, source.catalog().aliases);
  EXPECT_EQ(copy.catalog().step, source.catalog().step);
}

// torchtitan's arrangement, with the values that people put into it: numpy, times, paths, sets.
TEST(Dcp, KeepsKeysAndValuesOfAnotherArrangement) {
  const test::TempDir work;
  const auto source =
      open_dcp(posix_storage(), Path(UNISHARD_TEST_DATA) / "golden/torch/titan_dcp");
  EXPECT_THAT(notes_of(*source), IsEmpty());
  const auto& odd = source->catalog().client_state["odd"];
  EXPECT_EQ(odd["array"]["name"], "numpy.core.multiarray._reconstruct");
  EXPECT_EQ(odd["frozenset"]["items"], Json({3}));
  std::vector<std::string> notes;
  write_dcp(*source, work.path() / "out", 2, source->layout(), &notes);
  EXPECT_THAT(notes, IsEmpty());
  expect_same_keys(*source, *open_dcp(posix_storage(), work.path() / "out"));
}

TEST(Dcp, KeysThatNobodyAskedForAreTold) {
  const test::TempDir work;
  const auto source =
      open_dcp(posix_storage(), Path(UNISHARD_TEST_DATA) / "golden/torch/titan_dcp");
  const auto remarks = [&](const Json& layout, std::string_view key_layout) {
    Catalog catalog = source->catalog();
    catalog.producer = {};
    return make_dcp_sink(posix_storage(), work.path() / "out", std::move(catalog), {}, layout,
                         key_layout)
        ->remarks();
  };
  EXPECT_THAT(remarks({}, ""),
              testing::ElementsAre("keys are model.NAME, optim.state.NAME.STATE and "
                                   "optim.param_groups.NUMBER.SETTING (--dcp-layout chooses "
                                   "others)"));
  EXPECT_THAT(remarks({}, "model-optim"), IsEmpty());
  EXPECT_THAT(remarks(source->layout(), ""), IsEmpty());
}

TEST(Dcp, HasItsOwnKeysWhereATensorIsGone) {
  const test::TempDir work;
  const auto source =
      open_dcp(posix_storage(), Path(UNISHARD_TEST_DATA) / "golden/torch/titan_dcp");
  Json layout = source->layout();
  layout["tensors"].erase(0);
  write_dcp(*source, work.path() / "out", 1, layout);
  const auto copy = open_dcp(posix_storage(), work.path() / "out");
  EXPECT_EQ(copy->layout(), Json({{"own", "titan"}})) << "those of its kind of script";
  expect_same(*source, *copy);
}

TEST(Dcp, WritesTheKeysThatAreAskedFor) {
  SKIP_WITHOUT_FIXTURES();
  using Keys = std::map<std::string, std::string>;  // name of a layout -> a key
  const Keys weights = {{"model-optim", "model.NAME"},
                        {"app", "app.model.NAME"},
                        {"flat", "NAME"},
                        {"titan", "NAME"}};
  const Keys moments = {{"model-optim", "optim.state.NAME.exp_avg"},
                        {"app", "app.optim.state.NAME.exp_avg"},
                        {"flat", "optim.state.NAME.exp_avg"},
                        {"titan", "optimizer.state.NAME.exp_avg"}};
  const Keys rates = {{"model-optim", "optim.param_groups.0.lr"},
                      {"app", "app.optim.param_groups.0.lr"},
                      {"flat", "optim.param_groups.0.lr"},
                      {"titan", "optimizer.param_groups.NAME.lr"}};
  for (const char* fixture : {"dcp_fsdp2_w2", "dcp_fsdp2_bf16_w2", "dcp_fsdp2_tied_w3"}) {
    const auto source = open_dcp(posix_storage(), fixtures() / "torch" / fixture / "checkpoint");
    const auto moment =
        std::ranges::find(source->catalog().tensors, state::kExpAvg, &TensorInfo::state);
    ASSERT_NE(moment, source->catalog().tensors.end());
    EXPECT_EQ(dcp_key_layouts().size(), weights.size());
    for (const std::string& layout : dcp_key_layouts()) {
      SCOPED_TRACE(std::string(fixture) + " as " + layout);
      const test::TempDir work;
      write_dcp(*source, work.path() / "out", 2, {}, nullptr, layout);
      const dcp::Metadata metadata =
          dcp::read_metadata(posix_storage(), work.path() / "out/.metadata");
      std::set<std::string> keys;
      for (const auto& tensor : metadata.tensors) keys.insert(tensor.key);
      for (const auto& object : metadata.objects) keys.insert(object.key);
      for (const Keys* wanted : {&weights, &moments, &rates}) {
        std::string key = wanted->at(layout);
        if (const auto at = key.find("NAME"); at != key.npos) key.replace(at, 4, moment->fqn);
        EXPECT_TRUE(keys.contains(key)) << key;
      }
      EXPECT_EQ(keys.contains("train_state.step"), layout == "titan");
      const auto copy = open_dcp(posix_storage(), work.path() / "out");
      expect_same(*source, *copy);
      const test::TempDir again;  // a reshard keeps it
      write_dcp(*copy, again.path() / "out", 1, copy->layout());
      const auto second = open_dcp(posix_storage(), again.path() / "out");
      expect_same(*source, *second);
      const Json own = {{"own", layout}};
      EXPECT_EQ(copy->layout(), layout == "model-optim" ? Json() : own);
      EXPECT_EQ(second->layout(), copy->layout());
      const test::TempDir later;  // and so does a folder that was in another format in between
      write_dcp(*copy, later.path() / "out", 1);
      EXPECT_EQ(open_dcp(posix_storage(), later.path() / "out")->layout(), copy->layout());
    }
  }
  EXPECT_THAT(error_of([&] { (void)dcp::own_layout("other"); }),
              Fails(ErrorCode::InvalidArgument, "model-optim, app, flat, titan"));
}

// torchtitan counts steps in train_state; an optimizer without step counters has no other.
TEST(Dcp, TheStepOfATrainStateIsNoTensorOfTheModel) {
  const auto source =
      open_dcp(posix_storage(), Path(UNISHARD_TEST_DATA) / "golden/torch/titan_dcp");
  for (const TensorInfo& tensor : source->catalog().tensors)
    EXPECT_THAT(tensor.fqn, Not(HasSubstr("train_state"))) << tensor.label();
  EXPECT_EQ(source->catalog().client_state["train_state"]["step"], Json({{"$type", "torch.Tensor"},
                                                                         {"dtype", "int32"},
                                                                         {"shape", Json::array()},
                                                                         {"hex", "07000000"}}));
}

// torchtitan loads its counter as a tensor, and a script may have other small tensors in its state.
TEST(Dcp, SmallTensorsOfTheClientStateStayTensorsThroughUniShardsFormat) {
  const test::TempDir work;
  const auto source =
      open_dcp(posix_storage(), Path(UNISHARD_TEST_DATA) / "golden/torch/titan_dcp");
  Catalog catalog = source->catalog();
  const Json pair = {
      {"$type", "torch.Tensor"}, {"dtype", "int16"}, {"shape", {2}}, {"hex", "0100ff7f"}};
  catalog.client_state["seen"] = {
      {"ids", pair},
      {"list", {1, pair}},
      {"none", Json()},
      {"tuple", {{"$type", "tuple"}, {"items", {pair, 7}}}},
      {"numbered", {{"$type", "builtins.dict"}, {"pairs", {{"a", {{{"b", pair}}}}, {1, "int"}}}}}};
  write_dcp(*source, work.path() / "out", catalog, {}, nullptr, "titan");
  using Type = std::pair<DType, Shape>;
  std::map<std::string, Type> stored;
  for (const auto& tensor :
       dcp::read_metadata(posix_storage(), work.path() / "out/.metadata").tensors)
    stored.emplace(tensor.key, Type(tensor.dtype.value(), tensor.shape));
  EXPECT_EQ(stored.at("train_state.step"), Type(DType::Int32, {}));
  EXPECT_EQ(stored.at("seen.ids"), Type(DType::Int16, {2}));
  EXPECT_EQ(stored.at("seen.list.1"), Type(DType::Int16, {2}));
  const auto copy = open_dcp(posix_storage(), work.path() / "out");
  EXPECT_EQ(copy->catalog().client_state, catalog.client_state);
  EXPECT_EQ(by_label(copy->catalog()), by_label(catalog));
}

// A second model beside the first, such as an average of its weights, with tied weights.
TEST(Dcp, AnExtraTensorWithASecondNameIsReadBack) {
  const test::TempDir work;
  Catalog catalog;
  catalog.world_size = 1;
  for (const char* key : {"w", "average.b"}) {
    TensorInfo& tensor = catalog.tensors.emplace_back();
    tensor.fqn = key;
    tensor.state = key[0] == 'w' ? "weights" : "extra";
    tensor.dtype = DType::Float32;
    tensor.shape = {2};
  }
  catalog.client_state = {
      {"average", {{"a", {{"$tensor", "average.b"}}}, {"b", {{"$tensor", "average.b"}}}}}};
  const auto sink = make_dcp_sink(posix_storage(), work.path() / "out", catalog);
  ASSERT_EQ(sink->fragments().size(), 3u) << "torch finds the tensor under both of its keys";
  for (std::size_t i = 0; i < 3; ++i) {
    const std::array<float, 2> values = {1.0f + static_cast<float>(sink->fragments()[i].tensor), 2};
    sink->write(i, {0, 2}, std::as_bytes(std::span(values)));
  }
  sink->commit();
  const auto copy = open_dcp(posix_storage(), work.path() / "out");
  EXPECT_EQ(copy->catalog().client_state, catalog.client_state);
  EXPECT_EQ(copy->catalog().tensors.size(), 2u);
}

/// A catalog of one parameter that records the state dict of which it comes.
Catalog with_recorded_keys(const Json& tensors, const Json& constants, const Json& objects) {
  Catalog catalog;
  catalog.world_size = 1;
  TensorInfo& tensor = catalog.tensors.emplace_back();
  tensor.fqn = "a";
  tensor.state = state::kWeights;
  tensor.dtype = DType::Float32;
  tensor.shape = {2};
  catalog.producer = {
      {"state_dict", {{"tensors", tensors}, {"constants", constants}, {"objects", objects}}}};
  return catalog;
}

TEST(Dcp, TakesTheRecordedKeysOnlyIfTheyAreThoseOfAStateDict) {
  const Json path = Json::parse(R"([["net", false], ["a", false]])");
  const Json row = Json::array({"net.a", path, "a", "weights"}), none = Json::array();
  const Json object = Json::parse(R"(["epoch", [["epoch", false]], 3])");
  const auto keys = [&](const Json& tensors, const Json& constants, const Json& objects) {
    const test::TempDir work;
    const auto sink = make_dcp_sink(posix_storage(), work.path() / "out",
                                    with_recorded_keys(tensors, constants, objects));
    const std::array<float, 2> values = {1, 2};
    sink->write(0, {0, 2}, std::as_bytes(std::span(values)));
    sink->commit();
    const auto copy = open_dcp(posix_storage(), work.path() / "out");
    return copy->layout().is_null() ? std::string() : copy->layout()["tensors"][0][0].dump();
  };
  EXPECT_EQ(keys(Json::array({row}), none, Json::array({object})), R"("net.a")");
  for (const char* forged : {"[1]", "{}", R"([["net.a", [["net"]], "a", "weights"]])",
                             R"([["net.a", null, 3, "weights"]])", R"([["net.a", null]])",
                             R"([["net.a", null, "b", "weights"]])"})
    EXPECT_EQ(keys(Json::parse(forged), none, none), "") << forged;
  for (const char* forged : {R"([["c", null, "float32", [1], [1]]])", R"([["c", null, 1, 2, 3]])",
                             R"([["c", null, "float32", [2], [0, 0, 0, 0]]])"})
    EXPECT_EQ(keys(Json::array({row}), Json::parse(forged), none), "") << forged;
  EXPECT_EQ(keys(Json::array({row}), none, Json::parse(R"([["o", null, {"$tensor": 5}]])")), "");
}

// A trainer that goes on with a converted checkpoint has other steps than the folder.
TEST(Dcp, TheRecordedFolderCountsAsLongAsTheValuesAreItsOwn) {
  const auto source =
      open_dcp(posix_storage(), Path(UNISHARD_TEST_DATA) / "golden/torch/titan_dcp");
  for (const bool is_changed : {false, true}) {
    const test::TempDir work;
    Catalog catalog = source->catalog();
    catalog.step += is_changed ? 1 : 0;
    write_dcp(*source, work.path() / "out", std::move(catalog));
    const auto copy = open_dcp(posix_storage(), work.path() / "out");
    EXPECT_EQ(copy->layout() == source->layout(), !is_changed);
    EXPECT_EQ(copy->catalog().step, source->catalog().step + (is_changed ? 1 : 0));
  }
}

TEST(Dcp, ARecordedFolderThatIsForgedIsNoRecord) {
  const test::TempDir work;
  const auto source =
      open_dcp(posix_storage(), Path(UNISHARD_TEST_DATA) / "golden/torch/titan_dcp");
  int number = 0;
  for (const char* forged : {"", "[", "[]", "{}", R"({"values": 3})", R"({"tensors": []})"}) {
    Catalog catalog = source->catalog();
    catalog.producer["dcp_folder"] = forged;
    const Path folder = work.path() / std::to_string(number++);
    write_dcp(*source, folder, std::move(catalog));
    EXPECT_EQ(open_dcp(posix_storage(), folder)->layout(), Json({{"own", "titan"}})) << forged;
  }
}

TEST(Dcp, EveryFolderKeepsItsKeys) {
  SKIP_WITHOUT_FIXTURES();
  int kept = 0;
  for (const Path& at : test::fixture_cases("torch", 90)) {
    const Path folder = at / "checkpoint";
    if (!std::filesystem::exists(folder / ".metadata")) continue;
    SCOPED_TRACE(at.filename());
    const auto source = open_dcp(posix_storage(), folder);
    if (source->layout().is_null()) continue;  // a flat parameter, which has no keys of its own
    const test::TempDir work;
    write_dcp(*source, work.path() / "out", 3, source->layout());
    expect_same_keys(*source, *open_dcp(posix_storage(), work.path() / "out"));
    if (source->layout().contains("objects")) {  // also when it was in another format in between
      write_dcp(*source, work.path() / "later", 3);
      expect_same_keys(*source, *open_dcp(posix_storage(), work.path() / "later"));
    }
    ++kept;
  }
  EXPECT_EQ(kept, 35);
}

TEST(Dcp, WhatWasWrittenForAnyWorldSizeReadsTheSame) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir work;
  for (const char* name :
       {"dcp_fsdp2_w2", "dcp_fsdp2_tied_w3", "dcp_fsdp2_bf16_w2", "dcp_dtensor_layouts_w4",
        "dcp_raw_optim_w2", "dcp_no_optim_step_w2", "old_1.13.1_dcp_shards_w3"}) {
    const auto source = open_dcp(posix_storage(), fixtures() / "torch" / name / "checkpoint");
    for (std::uint32_t world = 1; world <= 5; ++world) {
      SCOPED_TRACE(fmt::format("{} for {} ranks", name, world));
      const Path folder = work.path() / fmt::format("{}-{}", name, world);
      Catalog catalog = source->catalog();
      catalog.world_size = world;
      catalog.producer = {};  // it has the keys of the folder
      write_dcp(*source, folder, std::move(catalog));
      const auto again = open_source(posix_storage(), folder);
      EXPECT_EQ(again->format(), "dcp");
      EXPECT_EQ(again->catalog().world_size, world);
      expect_same(*source, *again);
    }
  }
}

/// A source whose bytes are numbers made from their places.
class MadeSource final : public Source {
 public:
  /// All bytes are 0 with the factor 0.
  explicit MadeSource(Catalog catalog, std::uint64_t factor = 1)
      : catalog_(std::move(catalog)), factor_(factor) {}
  std::string format() const override { return "made"; }
  const Catalog& catalog() const override { return catalog_; }
  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    const std::uint64_t width = size_of(catalog_.tensors[tensor].dtype);
    for (std::uint64_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<std::byte>(factor_ * (tensor * 31 + (range.begin * width + i) * 7));
  }

 private:
  const Catalog catalog_;
  const std::uint64_t factor_;
};

Catalog mixed_precision_catalog() {
  Catalog catalog;
  const auto add = [&](const char* fqn, std::string_view state, DType dtype, Shape shape,
                       std::int32_t group) {
    TensorInfo& tensor = catalog.tensors.emplace_back();
    tensor.fqn = fqn;
    tensor.state = state;
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    tensor.group = group;
  };
  for (const char* fqn : {"emb.weight", "0.bias"}) {
    const Shape shape = fqn[0] == 'e' ? Shape{5, 3} : Shape{4};
    for (const std::string_view state : {state::kFp32, state::kExpAvg, state::kExpAvgSq})
      add(fqn, state, DType::Float32, shape, 0);
    add(fqn, state::kWeights, DType::BFloat16, shape, 0);
  }
  add("fixed", state::kWeights, DType::Float32, {2, 2}, -1);
  catalog.tensors.back().frozen = true;
  add("scale", state::kBuffer, DType::Float32, {}, -1);
  add("empty", state::kWeights, DType::Float32, {0, 3}, -1);
  catalog.aliases = {{"head.weight", "emb.weight"}};
  catalog.step = 70000;
  catalog.stage = 2;
  catalog.groups =
      Json::array({{{"lr", 0.5}, {"betas", {0.9, 0.95}}, {"params", {"emb.weight", "0.bias"}}}});
  catalog.client_state = {
      {"note", "x"},
      {"nested", {{"list", {1, 2}}, {"odd", {{"$type", "object"}, {"name", "a.B"}}}}}};
  catalog.loss_scaler = {{"cur_scale", 65536.0}};
  catalog.scheduler = {{"last_epoch", 3}};
  catalog.data_position = {{"global_steps", 70000}};
  return catalog;
}

TEST(Dcp, MasterWeightsAndEverySectionSurvive) {
  const test::TempDir work;
  const MadeSource source(mixed_precision_catalog());
  write_dcp(source, work.path() / "out", 3);
  const auto again = open_dcp(posix_storage(), work.path() / "out");
  expect_same(source, *again);
  EXPECT_EQ(again->catalog().loss_scaler, source.catalog().loss_scaler);
  EXPECT_EQ(again->catalog().data_position, source.catalog().data_position);
  EXPECT_TRUE(std::filesystem::exists(work.path() / "out" / "__2_0.distcp"));
}

TEST(Dcp, AnUncommittedSinkLeavesNothing) {
  const test::TempDir work;
  const MadeSource source(mixed_precision_catalog());
  { const auto sink = make_dcp_sink(posix_storage(), work.path() / "out", source.catalog()); }
  EXPECT_TRUE(std::filesystem::is_empty(work.path()));
  write_dcp(source, work.path() / "out", 2);
  EXPECT_THROW(make_dcp_sink(posix_storage(), work.path() / "out", source.catalog()), Error);
}

/// A copy of a fixture that a test may damage.
Path copy_of(const test::TempDir& work, const std::string& name) {
  return test::copy_folder(fixtures() / "torch" / name / "checkpoint", work.path() / name);
}

/// Opens and reads everything; returns the error it must end in.
Error refusal(const Path& folder) {
  return error_of([&] { read_all_tensors(*open_dcp(posix_storage(), folder)); });
}

// A checksum for each item, so that damage is found which no structure shows.
TEST(Dcp, CheckFindsAFlippedBitOfAnItem) {
  const test::TempDir work;
  const MadeSource source(mixed_precision_catalog());
  const Path folder = work.path() / "out", file = folder / "__0_0.distcp";
  write_dcp(source, folder, 2);
  const std::uint64_t items = open_dcp(posix_storage(), folder)->check({});
  EXPECT_GE(items, source.catalog().tensors.size() - 1) << "but the empty tensor";

  const std::vector<std::byte> stored = read_all(source, 0);  // the first rows are rank 0's
  const std::string first(reinterpret_cast<const char*>(stored.data()), 12);
  const std::size_t at = read_file(file).find(first);
  ASSERT_NE(at, std::string::npos);
  flip_bits(file, at + 5);
  EXPECT_THAT(error_of([&] { open_dcp(posix_storage(), folder)->check({}); }),
              Fails(ErrorCode::Corrupt, {"__0_0.distcp", "do not match their CRC-32"}));
}

TEST(Dcp, DamagedFoldersAreRefusedByName) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir work;
  const Path missing = copy_of(work, "dcp_fsdp2_w3");
  std::filesystem::remove(missing / "__1_0.distcp");
  EXPECT_THAT(refusal(missing).what(), HasSubstr("__1_0.distcp is missing"));

  const Path cut = copy_of(work, "dcp_fsdp2_w2");
  std::filesystem::resize_file(cut / "__0_0.distcp", 70000);
  EXPECT_THAT(refusal(cut).what(), HasSubstr("cut short"));

  const Path link = copy_of(work, "dcp_hsdp_2x2");
  std::filesystem::rename(link / "__0_0.distcp", work.path() / "elsewhere");
  std::filesystem::create_symlink(work.path() / "elsewhere", link / "__0_0.distcp");
  EXPECT_THAT(refusal(link).what(), HasSubstr("is a link"));

  const Path unfinished = copy_of(work, "dcp_fsdp2_w4");
  std::filesystem::remove(unfinished / ".metadata");
  EXPECT_THAT(refusal(unfinished).what(), HasSubstr("did not finish"));
}

TEST(Dcp, AKeyThatThePlannerNotedAndNothingIsStoredOfIsLost) {
  const Path folder = Path(UNISHARD_TEST_DATA) / "golden/torch/titan_dcp";
  dcp::Metadata metadata = dcp::read_metadata(posix_storage(), folder / ".metadata");
  const std::string gone = metadata.tensors.front().key;
  metadata.tensors.erase(metadata.tensors.begin());
  dcp::StateDictBuilder builder(posix_storage());
  builder.add_folder(folder, metadata, 0);
  ASSERT_EQ(builder.out.lost_keys.size(), 1u);
  EXPECT_EQ(builder.out.lost_keys.front().key, gone);
  EXPECT_THAT(builder.out.lost_keys.front().why, HasSubstr("no file holds it"));
}

/// Reads a folder by a table that a test has changed.
dcp::StateDictBuilder read_by(const Path& folder, const dcp::Metadata& metadata) {
  dcp::StateDictBuilder builder(posix_storage());
  builder.add_folder(folder, metadata, 0);
  return builder;
}

TEST(Dcp, AParameterThatOnlyTheOptimizerKnowsIsMissing) {
  SKIP_WITHOUT_FIXTURES();
  const Path folder = fixtures() / "torch/dcp_fsdp2_w2/checkpoint";
  dcp::Metadata metadata = dcp::read_metadata(posix_storage(), folder / ".metadata");
  const auto is_trained = [](const dcp::StoredTensor& tensor) {
    return tensor.key.starts_with("model.") && tensor.key.ends_with(".weight");
  };
  const auto gone = std::ranges::find_if(metadata.tensors, is_trained);
  ASSERT_NE(gone, metadata.tensors.end());
  const std::string key = gone->key;
  metadata.tensors.erase(gone);
  std::erase_if(metadata.order, [&](const auto& item) { return item.first == key; });
  const auto source = dcp::make_state_dict_source(
      "dcp", read_by(folder, metadata).finish(folder.string()), folder.string());
  EXPECT_THAT(source->losses(),
              testing::Contains(testing::AllOf(testing::Field(&Loss::role, Role::Weight),
                                               testing::Field(&Loss::name, key.substr(6)))));
}

TEST(Dcp, ParametersOfWhichTheModelLacksMostAreCounted) {
  SKIP_WITHOUT_FIXTURES();
  const Path folder = fixtures() / "torch/dcp_fsdp2_w2/checkpoint";
  dcp::Metadata metadata = dcp::read_metadata(posix_storage(), folder / ".metadata");
  std::set<std::string> gone;
  for (const dcp::StoredTensor& tensor : metadata.tensors) {
    if (tensor.key.starts_with("model.")) gone.insert(tensor.key);
  }
  ASSERT_GT(gone.size(), 2u);
  gone.erase(gone.begin());
  std::erase_if(metadata.tensors, [&](const auto& tensor) { return gone.contains(tensor.key); });
  std::erase_if(metadata.order, [&](const auto& item) { return gone.contains(item.first); });
  const auto source = dcp::make_state_dict_source(
      "dcp", read_by(folder, metadata).finish(folder.string()), folder.string());
  EXPECT_THAT(source->remarks(),
              testing::Contains(testing::AllOf(HasSubstr("parameters that the model lacks"),
                                               HasSubstr(gone.begin()->substr(6)))));
}

// dcp.save(model.state_dict()): nothing but the modules' names is at the top level.
TEST(Dcp, AModuleMayBeCalledAsWhatIsBesideModels) {
  for (const char* module : {"optimizer", "optim_head", "scheduler", "rng_state", "dataloader"}) {
    dcp::StateDictBuilder builder(posix_storage());
    const std::string head = std::string(module) + ".weight";
    for (const std::string& name : {std::string("body.weight"), head}) {
      torch::TensorView view;
      view.shape = {2};
      view.strides = {1};
      auto storage = std::make_shared<torch::StorageBytes>();
      storage->inflated = std::make_shared<const std::string>(8, '\0');
      view.storage = std::move(storage);
      builder.add_piece(name, {{name, false}}, {2}, {{0}, {2}}, std::move(view));
    }
    const auto source = dcp::make_state_dict_source("dcp", builder.finish("test"), "test");
    EXPECT_TRUE(source->catalog().find(head, state::kWeights)) << head;
  }
}

TEST(Dcp, ACopyInTheFileOfAnotherRankIsRefused) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir work;
  const Path folder = copy_of(work, "dcp_hf_sharded_w3");
  std::filesystem::copy_file(folder / "shard-00001-model-00002-of-00002.safetensors",
                             folder / "shard-00003-model-00002-of-00002.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(error_of([&] { open_source(posix_storage(), folder); }),
              Fails(ErrorCode::Corrupt, "hold the same part"));
}

// Of two ranks, each of which has half of the rows, the first one's would make whole tensors.
TEST(Dcp, AFileThatIsACopyOfAnotherRanksIsRefused) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir work;
  const Path folder = copy_of(work, "dcp_hf_sharded_w3");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("shard-00001")) std::filesystem::remove(entry.path());
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::string name = entry.path().filename().string();
    std::filesystem::copy_file(entry.path(), folder / name.replace(0, 11, "shard-00002"));
  }
  EXPECT_THAT(error_of([&] { open_source(posix_storage(), folder); }),
              Fails(ErrorCode::Corrupt, "hold the same parts of the same tensors"));
}

TEST(Dcp, TwoNamesAtOnePlaceAreRefusedWhereBytesHaveNone) {
  const Path folder = Path(UNISHARD_TEST_DATA) / "golden/torch/titan_dcp";
  dcp::Metadata metadata = dcp::read_metadata(posix_storage(), folder / ".metadata");
  EXPECT_THAT(read_by(folder, metadata).out.notes, testing::IsEmpty());
  const auto has_one = [](const dcp::StoredTensor& tensor) { return tensor.chunks.size() == 1; };
  const auto first = std::ranges::find_if(metadata.tensors, has_one);
  const auto second = std::find_if(first + 1, metadata.tensors.end(), [&](const auto& tensor) {
    return has_one(tensor) && tensor.chunks[0].item.file == first->chunks[0].item.file;
  });
  ASSERT_NE(second, metadata.tensors.end());
  second->chunks[0].item = first->chunks[0].item;
  EXPECT_THAT(error_of([&] { read_by(folder, metadata); }),
              Fails(ErrorCode::Corrupt, {first->key, second->key, "at one place", "is lost"}));
}

TEST(Dcp, BytesWithoutANameAreNoted) {
  const Path folder = Path(UNISHARD_TEST_DATA) / "golden/torch/titan_dcp";
  dcp::Metadata metadata = dcp::read_metadata(posix_storage(), folder / ".metadata");
  metadata.order.erase(metadata.tensors.front().key);
  metadata.tensors.erase(metadata.tensors.begin());
  EXPECT_THAT(read_by(folder, metadata).out.notes,
              testing::Contains(HasSubstr("bytes that the metadata gives no name")));
}

/// A file of safetensors items has a table of its own.
TEST(Dcp, TensorsOfATableThatTheMetadataLacksAreNoted) {
  SKIP_WITHOUT_FIXTURES();
  const Path folder = fixtures() / "torch/dcp_safetensors_items_w2/checkpoint";
  dcp::Metadata metadata = dcp::read_metadata(posix_storage(), folder / ".metadata");
  EXPECT_THAT(read_by(folder, metadata).out.notes, testing::IsEmpty());
  metadata.order.erase(metadata.tensors.front().key);
  metadata.tensors.erase(metadata.tensors.begin());
  EXPECT_THAT(read_by(folder, metadata).out.notes,
              testing::Contains(HasSubstr("bytes that the metadata gives no name")));
}

/// As a file system leaves them where a write was lost.
TEST(Dcp, AnObjectOfZerosIsDamage) {
  const test::TempDir work;
  const Path folder = work.path() / "zeroed";
  test::copy_folder(Path(UNISHARD_TEST_DATA) / "golden/torch/titan_dcp", folder);
  const dcp::Metadata metadata = dcp::read_metadata(posix_storage(), folder / ".metadata");
  ASSERT_FALSE(metadata.objects.empty());
  const auto& [key, item] = metadata.objects.front();
  for (const char byte : {'\0', '\xff'}) {
    const Path file = folder / metadata.files[item.file];
    std::string bytes = read_file(file);
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(item.offset), item.length, byte);
    write_file(file, bytes);
    EXPECT_THAT(error_of([&] { open_source(posix_storage(), folder); }),
                Fails(ErrorCode::Corrupt, {key, "bytes are 0x"}));
  }
}

TEST(Dcp, AFileThatTheMetadataNamesAndIsNotThereIsDamage) {
  const test::TempDir work;
  const Path folder = work.path() / "cut";
  test::copy_folder(Path(UNISHARD_TEST_DATA) / "golden/torch/titan_dcp", folder);
  std::filesystem::remove(folder / "__0_0.distcp");
  EXPECT_THAT(error_of([&] { open_source(posix_storage(), folder); }),
              Fails(ErrorCode::Corrupt, "__0_0.distcp is missing; the metadata names it"));
}

TEST(Dcp, AFieldThatIsMissingIsNamedWithItsFile) {
  const test::TempDir work;
  const Path folder = work.path() / "golden", file = folder / ".metadata";
  test::copy_folder(Path(UNISHARD_TEST_DATA) / "golden/torch/titan_dcp", folder);
  std::string bytes = read_file(file);
  const std::size_t at = bytes.find(
      "\x8c\3"
      "fqn");  // the one text to which all others refer
  ASSERT_NE(at, std::string::npos);
  bytes[at + 2] = 'g';
  write_file(file, bytes);
  EXPECT_THAT(refusal(folder), Fails(ErrorCode::Corrupt, {".metadata", "has no field fqn"}));
}

/// Removes the files of a copied fixture whose names begin so, and opens it.
Error error_without(const std::string& name, const std::string& folder, const std::string& part) {
  const test::TempDir dir;
  test::copy_folder(test::fixtures() / "torch" / name / "checkpoint", dir.path() / "copy");
  std::vector<Path> removed;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path() / "copy" / folder)) {
    if (entry.path().filename().string().find(part) != std::string::npos)
      removed.push_back(entry.path());
  }
  for (const Path& file : removed) std::filesystem::remove(file);
  EXPECT_FALSE(removed.empty());
  return error_of([&] { open_source(posix_storage(), dir.path() / "copy"); });
}

TEST(Dcp, FilesThatAllRanksLackAreMissed) {
  SKIP_WITHOUT_FIXTURES();
  EXPECT_THAT(error_without("dcp_hf_sharded_w3", "", "model-00002-of-00002"),
              Fails(ErrorCode::Corrupt, {"no rank has a file", "model-00002-of-00002"}));
  EXPECT_THAT(error_without("dcp_hf_consolidated_w2", "sharded", "shard-00002"),
              Fails(ErrorCode::Corrupt, {"files of a rank are missing"}));
}

TEST(Dcp, ADamagedFolderOfRanksIsNotPassedOver) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir work;
  const Path folder = copy_of(work, "dcp_hf_consolidated_w2");
  for (const auto& entry : std::filesystem::directory_iterator(folder / "sharded")) {
    const std::string whole = read_file(entry.path());
    std::filesystem::resize_file(entry.path(), 5);
    const std::string name = entry.path().filename().string();
    EXPECT_THAT(error_of([&] { open_source(posix_storage(), folder); }).what(), HasSubstr(name));
    write_file(entry.path(), whole);
  }
  std::filesystem::remove_all(folder / "sharded");
  std::filesystem::create_directory(folder / "sharded");
  EXPECT_THAT(open_source(posix_storage(), folder)->losses(),
              testing::Contains(testing::Field(&Loss::name, "sharded")));
}

TEST(Dcp, AFileOfAnotherKindInTheModelsPlaceIsRefused) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir work;
  const Path folder = copy_of(work, "accelerate_fsdp1_full_w2");
  std::filesystem::copy_file(folder / "scheduler.bin", folder / "pytorch_model_fsdp.bin",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(refusal(folder), Fails(ErrorCode::Corrupt, {"pytorch_model_fsdp.bin",
                                                          "it was written as scheduler.bin"}));
}

/// Expects that the optimizer is lost under `name`, and that the model is there.
void expect_lost_optimizer(const Source& source, const std::string& name) {
  const Losses losses = source.losses();
  const auto found = std::ranges::find(losses, name, &Loss::name);
  ASSERT_NE(found, losses.end()) << name;
  EXPECT_TRUE(found->role == Role::Optimizer && found->is_broken) << name;
  EXPECT_FALSE(source.catalog().tensors.empty()) << name;
}

TEST(Dcp, ADamagedFileOfTheOptimizerLeavesTheModel) {
  SKIP_WITHOUT_FIXTURES();
  const std::vector<std::pair<std::string, std::string>> files = {
      {"accelerate_fsdp2_full_w2", "optimizer.bin"},
      {"accelerate_fsdp2_per_rank_w2", "optimizer_0_rank1.bin"},
      {"dtensor_per_rank_w3", "optim_world_size_3_rank_0.pt"}};
  for (const auto& [run, name] : files) {
    const test::TempDir work;
    const Path folder = copy_of(work, run);
    std::filesystem::resize_file(folder / name, 1000);
    const auto source = open_source(posix_storage(), folder);
    expect_lost_optimizer(*source, name);
    const auto is_state = [](const TensorInfo& tensor) { return tensor.state == state::kExpAvg; };
    EXPECT_TRUE(std::ranges::none_of(source->catalog().tensors, is_state)) << name;
  }
}

TEST(Dcp, ADataFileThatIsACopyOfAnotherIsDoubted) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir work;
  const Path run = test::copy_folder(fixtures() / "parallel/mcore_ep2_dp2/checkpoint",
                                     work.path() / "run"),
             step = run / "iter_0000002";
  EXPECT_THAT(open_source(posix_storage(), run)->remarks(), testing::IsEmpty());
  std::filesystem::copy_file(step / "__1_0.distcp", step / "__1_1.distcp",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(open_source(posix_storage(), run)->remarks(),
              testing::Contains(testing::AllOf(HasSubstr("__1_1.distcp has the bytes of "),
                                               HasSubstr("__1_0.distcp"))));
}

/// Parts of tensors whose elements all have one value may be equal.
TEST(Dcp, EqualDataFilesOfOneValueAreNotDoubted) {
  const test::TempDir work;
  Catalog catalog;
  catalog.tensors.resize(2);
  catalog.tensors[0].fqn = "a";
  catalog.tensors[1].fqn = "b";
  for (TensorInfo& tensor : catalog.tensors) {
    tensor.state = state::kWeights;
    tensor.shape = {9, 64};
  }
  const MadeSource source(catalog, 0);
  write_dcp(source, work.path() / "out", 3);
  ASSERT_EQ(read_file(work.path() / "out/__1_0.distcp"),
            read_file(work.path() / "out/__2_0.distcp"));
  EXPECT_THAT(open_source(posix_storage(), work.path() / "out")->remarks(), testing::IsEmpty());
}

TEST(Dcp, AFileOfAnotherKindInTheOptimizersPlaceIsLost) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir work;
  const Path folder = copy_of(work, "accelerate_fsdp1_full_w2");
  std::filesystem::copy_file(folder / "scheduler.bin", folder / "optimizer.bin",
                             std::filesystem::copy_options::overwrite_existing);
  expect_lost_optimizer(*open_source(posix_storage(), folder), "optimizer.bin");
}

/// accelerate stores model and optimizer in a folder each, one after the other.
TEST(Dcp, AnUnfinishedModelOfAccelerateIsRefusedByName) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir work;
  const Path folder = copy_of(work, "accelerate_fsdp2_sharded_w2"),
             part = folder / "pytorch_model_fsdp_0";
  std::filesystem::remove(part / ".metadata");
  EXPECT_EQ(probe(posix_storage(), folder).format, "dcp");
  EXPECT_THAT(error_of([&] { open_source(posix_storage(), folder); }),
              Fails(ErrorCode::Corrupt,
                    {"pytorch_model_fsdp_0", "data files and no .metadata: the save did not"}));
  for (const auto& file : std::filesystem::directory_iterator(part)) std::filesystem::remove(file);
  EXPECT_THAT(error_of([&] { open_source(posix_storage(), folder); }),
              Fails(ErrorCode::Corrupt,
                    {"pytorch_model_fsdp_0", "has no .metadata: the save did not finish"}));
}

TEST(Dcp, ADamagedOptimizerFolderLeavesTheModel) {
  SKIP_WITHOUT_FIXTURES();
  using Damage = std::function<void(const Path&)>;
  const std::vector<std::pair<std::string, Damage>> damages = {
      {"data files and no .metadata",
       [](const Path& folder) { std::filesystem::remove(folder / ".metadata"); }},
      {"__0_0.distcp is missing",
       [](const Path& folder) { std::filesystem::remove(folder / "__0_0.distcp"); }},
      {".metadata", [](const Path& folder) { write_file(folder / ".metadata", ""); }}};
  for (const auto& [words, damage] : damages) {
    const test::TempDir work;
    const Path folder = copy_of(work, "accelerate_fsdp2_sharded_w2");
    damage(folder / "optimizer_0");
    const auto source = open_source(posix_storage(), folder);
    expect_lost_optimizer(*source, "optimizer_0");
    EXPECT_THAT(source->losses(),
                testing::Contains(testing::AllOf(testing::Field(&Loss::name, "optimizer_0"),
                                                 testing::Field(&Loss::why, HasSubstr(words)))));
  }
}

/// accelerate saves the adapter of a PEFT model under the names of its file.
TEST(Dcp, AnAdapterOfFsdpHasItsStates) {
  const auto source =
      open_source(posix_storage(), Path(UNISHARD_TEST_DATA) / "golden/torch/fsdp2_lora");
  std::vector<std::string> labels;
  for (const TensorInfo& tensor : source->catalog().tensors)
    labels.push_back(tensor.label().substr(tensor.label().find("q_proj")));
  EXPECT_THAT(labels, testing::UnorderedElementsAre("q_proj.lora_A.default.weight [fp32]",
                                                    "q_proj.lora_A.default.weight [exp_avg]",
                                                    "q_proj.lora_A.default.weight [exp_avg_sq]",
                                                    "q_proj.lora_B.default.weight [fp32]",
                                                    "q_proj.lora_B.default.weight [exp_avg]",
                                                    "q_proj.lora_B.default.weight [exp_avg_sq]"));
  EXPECT_EQ(source->catalog().producer["adapter_names"], "modules");
}

/// Under FSDP1 it saves nothing of it.
TEST(Dcp, AnAdapterThatFsdp1DidNotSaveIsMissing) {
  const test::TempDir work;
  const Path folder = work.path() / "in", model = folder / "pytorch_model_fsdp_0";
  test::copy_folder(Path(UNISHARD_TEST_DATA) / "golden/torch/fsdp2_lora", folder);
  std::filesystem::remove_all(model);
  std::filesystem::create_directory(model);
  std::filesystem::rename(folder / "fsdp1_model.metadata", model / ".metadata");
  for (const char* name : {"__0_0.distcp", "__1_0.distcp"}) write_file(model / name, "");
  const Losses losses = open_source(posix_storage(), folder)->losses();
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses[0].role, Role::Weight);
  EXPECT_THAT(text_of(losses[0]), HasSubstr("\"pytorch_model_fsdp_0\": no tensor is in the"));
}

TEST(Dcp, ASchedulesFileThatIsMissingIsSaid) {
  const test::TempDir work;
  const Path folder = work.path() / "in";
  test::copy_folder(Path(UNISHARD_TEST_DATA) / "golden/torch/fsdp2_lora", folder);
  const auto save = [&](const char* name) {
    save_torch(folder / name, {{"last_epoch", 3}, {"_step_count", 4}}, {}, "scheduler");
  };
  const auto lost = [&] {
    Losses losses = open_source(posix_storage(), folder)->losses();
    std::erase_if(losses, [](const Loss& loss) { return loss.why.empty(); });
    return lines_of(losses);
  };
  save("scheduler_1.bin");
  EXPECT_THAT(lost(), testing::ElementsAre(
                          HasSubstr("\"scheduler.bin\": missing, and scheduler_1.bin is there")));
  save("scheduler.bin");
  EXPECT_THAT(lost(), IsEmpty());
  std::filesystem::remove(folder / "scheduler_1.bin");
  EXPECT_THAT(lost(), IsEmpty());
}

/// A checkpoint of the Trainer with FSDP, made of one that accelerate saved after 3 steps.
class TrainerWithFsdp : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_FIXTURES();
    test::copy_folder(fixtures() / "torch/accelerate_fsdp2_sharded_w2/checkpoint", folder_);
    std::filesystem::remove(folder_ / "scheduler.bin");
    save_torch(folder_ / "scheduler.pt", {{"last_epoch", 3}, {"_step_count", 4}}, {}, "scheduler");
    write_file(folder_ / "trainer_state.json", R"({"global_step": 3})");
  }

  std::unique_ptr<Source> open() const { return open_source(posix_storage(), folder_); }
  /// All lines about the folder, but for those of files that nobody reads.
  std::vector<std::string> lines() const {
    const auto source = open();
    std::vector<std::string> all = notes_of(*source);
    std::ranges::move(source->remarks(), std::back_inserter(all));
    std::erase_if(
        all, [](const std::string& line) { return line.ends_with("file \"trainer_state.json\""); });
    return all;
  }

  const test::TempDir work_;
  const Path folder_ = work_.path() / "checkpoint-3";
};

TEST_F(TrainerWithFsdp, OfOneSaveIsReadWithItsSchedule) {
  EXPECT_THAT(lines(), IsEmpty());
  EXPECT_EQ(open()->catalog().scheduler["last_epoch"], 3);
}

TEST_F(TrainerWithFsdp, StepsThatDifferAreSaid) {
  write_file(folder_ / "trainer_state.json", R"({"global_step": 4})");
  EXPECT_THAT(lines(), testing::ElementsAre(HasSubstr("and the folder's name 3"),
                                            HasSubstr("and the optimizer 3")));
  write_file(folder_ / "trainer_state.json", R"({"global_step": 3})");
  std::filesystem::remove(folder_ / "scheduler.pt");
  save_torch(folder_ / "scheduler.pt", {{"last_epoch", 2}, {"_step_count", 3}}, {}, "scheduler");
  EXPECT_THAT(lines(), testing::ElementsAre(HasSubstr("counts 3 steps, and the schedule 2")));
}

TEST_F(TrainerWithFsdp, FilesThatAreMissingOrDamagedAreSaid) {
  write_file(folder_ / "trainer_state.json", "");
  EXPECT_THAT(lines(), testing::Contains(HasSubstr("trainer_state.json: not valid JSON")));
  write_file(folder_ / "trainer_state.json", R"({"global_step": 3})");
  write_file(folder_ / "scheduler.pt", "");
  EXPECT_THAT(lines(), testing::ElementsAre(HasSubstr("setting \"scheduler.pt\": damaged")));
  std::filesystem::remove(folder_ / "scheduler.pt");
  EXPECT_THAT(lines(), testing::ElementsAre(HasSubstr("scheduler.pt is not there")));
}

TEST_F(TrainerWithFsdp, AnOptimizerThatIsGoneIsSaid) {
  std::filesystem::remove_all(folder_ / "optimizer_0");
  EXPECT_THAT(lines(), testing::ElementsAre(HasSubstr("optimizer_0")));
}

TEST_F(TrainerWithFsdp, ASaveThatDidNotFinishIsSaid) {
  test::copy_folder(folder_, work_.path() / "checkpoint-2");
  std::filesystem::remove(folder_ / "trainer_state.json");
  const auto is_said = testing::Contains(HasSubstr("checkpoint-2 has it, and it is not here"));
  EXPECT_THAT(lines(), is_said);
  std::filesystem::remove(work_.path() / "checkpoint-2/trainer_state.json");
  EXPECT_THAT(lines(), IsEmpty());
}

TEST(Dcp, AnIterationOfMegatronWithoutItsCommonFileKeepsTheNamesOfItsStates) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir work;
  const Path run = test::fixtures() / "parallel" / "mcore_tp2_pp2" / "checkpoint";
  std::filesystem::copy(run, work.path() / "run", std::filesystem::copy_options::recursive);
  const auto whole = open_source(posix_storage(), run);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(work.path() / "run")) {
    if (entry.path().filename() == "common.pt") {
      std::filesystem::remove(entry.path());
      break;
    }
  }
  const auto source = open_source(posix_storage(), work.path() / "run");
  EXPECT_THAT(source->losses(), testing::Contains(testing::Field(&Loss::name, "common.pt")));
  ASSERT_EQ(source->catalog().tensors.size(), whole->catalog().tensors.size());
  for (const TensorInfo& tensor : whole->catalog().tensors)
    EXPECT_TRUE(source->catalog().find(tensor.fqn, tensor.state)) << tensor.label();
}

TEST(Dcp, ASecondModelOfAccelerateIsNotTheFirst) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir work;
  const Path folder = copy_of(work, "accelerate_fsdp2_sharded_w2");
  std::filesystem::copy(folder / "pytorch_model_fsdp_0", folder / "pytorch_model_fsdp_1");
  std::vector<std::string> others;
  for (const Loss& loss : open_source(posix_storage(), folder)->losses()) {
    if (loss.role == Role::OtherModel) others.push_back(loss.name);
  }
  EXPECT_EQ(others, std::vector<std::string>{"pytorch_model_fsdp_1"});
  std::filesystem::remove_all(folder / "pytorch_model_fsdp_0");
  EXPECT_NE(thrown_by([&] { open_source(posix_storage(), folder); }), std::nullopt);

  const Path ranks = copy_of(work, "accelerate_fsdp2_per_rank_w2");
  for (const char* rank : {"rank0.bin", "rank1.bin"})
    std::filesystem::rename(ranks / (std::string("pytorch_model_fsdp_0_") + rank),
                            ranks / (std::string("pytorch_model_fsdp_1_") + rank));
  EXPECT_NE(thrown_by([&] { open_source(posix_storage(), ranks); }), std::nullopt);
}

TEST(Dcp, EveryCutOfTheMetadataIsRefused) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir work;
  const Path folder = copy_of(work, "old_2.6.0_dcp_dtensor_w2");
  const auto size = std::filesystem::file_size(folder / ".metadata");
  for (std::uintmax_t length = size - 1; length > 0;
       length -= std::min<std::uintmax_t>(length, 37)) {
    std::filesystem::resize_file(folder / ".metadata", length);
    SCOPED_TRACE(length);
    refusal(folder);
  }
}

TEST(Dcp, ATensorThatTheEmbeddedCatalogLacksIsRefused) {
  const test::TempDir work;
  const Path folder = work.path() / "out";
  write_dcp(MadeSource(mixed_precision_catalog()), folder, 2);
  const Path path = folder / ".metadata";
  std::string bytes = read_file(path);
  // All names of the second name, of one length.
  for (const char* name : {"model.head.weight", "head.weight"}) {
    const std::size_t at = bytes.find(std::string("\0\0\0", 3) + name);
    ASSERT_NE(at, std::string::npos);
    bytes[at + 3 + std::string(name).size() - 1] = 's';
  }
  write_file(path, bytes);
  EXPECT_THAT(refusal(folder).what(), HasSubstr("lacks the tensor \"model.head.weighs\""));
}

/// Everything that a conversion takes from a folder, as one text.
std::string content_of(const Path& folder) {
  const auto source = open_dcp(posix_storage(), folder);
  source->check({});
  const Catalog& catalog = source->catalog();
  std::string out =
      fmt::format("step {} world {} stage {}\n", catalog.step, catalog.world_size, catalog.stage);
  for (const auto& [name, section] : Catalog::sections()) {
    if (section != &Catalog::producer)  // a version, for people
      out += fmt::format("{} {}\n", name, (catalog.*section).dump());
  }
  for (const Alias& alias : catalog.aliases)
    out += fmt::format("{} = {}\n", alias.fqn, alias.target);
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    const TensorInfo& tensor = catalog.tensors[i];
    out += fmt::format("{} {} ({}) {} {} {:016x}\n", tensor.label(), name_of(tensor.dtype),
                       fmt::join(tensor.shape, ","), tensor.frozen, tensor.group,
                       crc64(read_all(*source, i)));
  }
  return out;
}

/// Whether a remark says that the keys and the embedded catalog differ.
bool is_said(const Path& folder) {
  return std::ranges::any_of(open_source(posix_storage(), folder)->remarks(),
                             [](const std::string& remark) {
                               return remark.find("unishard.catalog") != std::string::npos;
                             });
}

/// Flips each bit of every `step`th byte of the metadata. Returns how many flips were refused; the
/// others must change nothing.
int count_refused_flips(const Path& folder, std::size_t step) {
  const Path path = folder / ".metadata";
  const std::string whole = read_file(path), expected = content_of(folder);
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); at += step) {
    for (int bit = 0; bit < 8; ++bit) {
      flip_bits(path, at, 1 << bit);
      std::string found;
      if (const auto error = thrown_by([&] { found = content_of(folder); })) {
        EXPECT_NE(error->code(), ErrorCode::Internal) << error->what();
        ++refused;
      } else if (!is_said(folder)) {
        EXPECT_EQ(found, expected) << "bit " << bit << " of byte " << at << ": ..."
                                   << unishard::quote(whole.substr(at < 40 ? 0 : at - 40, 80));
      }
      flip_bits(path, at, 1 << bit);
    }
  }
  return refused;
}

TEST(Dcp, AFlippedBitOfOurMetadataIsRefusedOrSaidOrChangesNothing) {
  const test::TempDir work;
  Catalog catalog = mixed_precision_catalog();
  // Nothing but this number says how long the rows are of which there are none.
  std::erase_if(catalog.tensors, [](const TensorInfo& tensor) { return tensor.fqn == "empty"; });
  write_dcp(MadeSource(catalog), work.path() / "out", 2);
  EXPECT_GT(count_refused_flips(work.path() / "out", 3), 1000);
}

TEST(Dcp, AFlippedBitOfTheMetadataOfOthersIsRefusedOrChangesNothing) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir work;
  for (const char* name : {"dcp_fsdp2_w2", "dcp_tp_fsdp_2x2", "old_2.1.2_dcp_dtensor_w2"}) {
    SCOPED_TRACE(name);
    EXPECT_GT(count_refused_flips(copy_of(work, name), 97), 100);
  }
}

TEST(DcpBoxes, ARangeOfElementsIsARowOfBoxes) {
  const Shape shape = {3, 4, 5};
  for (std::uint64_t begin = 0; begin <= 60; ++begin) {
    for (std::uint64_t end = begin; end <= 60; ++end) {
      std::uint64_t at = begin;
      const auto boxes = boxes_of(shape, {begin, end});
      EXPECT_LE(boxes.size(), 5u);
      for (const Box& box : boxes) {
        EXPECT_EQ(count_before(shape, box, at), 0u);
        BoxRuns(shape, box)({0, box.elements()}, [&](const auto& run) {
          EXPECT_EQ(run.tensor_first, at);
          at += run.count;
        });
      }
      EXPECT_EQ(at, end);
    }
  }
}

TEST(DcpBoxes, ACoverHasNoHoleAndNoOverlap) {
  const auto verdict = [](const Shape& shape, const std::vector<Box>& boxes) -> std::string {
    std::vector<const Box*> pointers;
    for (const Box& box : boxes) pointers.push_back(&box);
    const auto error = thrown_by([&] { check_cover(shape, pointers, "t"); });
    return error ? error->what() : "covered";
  };
  EXPECT_EQ(verdict({}, {{{}, {}}}), "covered");
  EXPECT_EQ(verdict({4, 3}, {{{0, 0}, {2, 3}}, {{2, 0}, {2, 3}}}), "covered");
  // A pinwheel: no cut goes through from side to side.
  EXPECT_EQ(verdict({3, 3}, {{{0, 0}, {1, 2}},
                             {{0, 2}, {2, 1}},
                             {{2, 1}, {1, 2}},
                             {{1, 0}, {2, 1}},
                             {{1, 1}, {1, 1}}}),
            "covered");
  EXPECT_THAT(verdict({4, 3}, {{{0, 0}, {2, 3}}}), HasSubstr("(2, 0) is in no chunk"));
  EXPECT_THAT(verdict({4, 3}, {{{0, 0}, {3, 3}}, {{2, 0}, {2, 3}}}),
              HasSubstr("(2, 0) is in several chunks"));
  // Volumes add up.
  EXPECT_THAT(verdict({4, 3}, {{{0, 0}, {2, 3}}, {{1, 0}, {2, 3}}}),
              HasSubstr("(1, 0) is in several chunks"));
  EXPECT_THAT(verdict({4}, {{{3}, {2}}}), HasSubstr("reaches out of the tensor"));
  EXPECT_THAT(verdict({4, 3}, {{{0}, {4}}}), HasSubstr("1 dimensions"));
  EXPECT_THAT(verdict({4}, {}), HasSubstr("no chunk"));
  EXPECT_EQ(verdict({0, 3}, {}), "covered");
}

// Of torchtitan's arrangement: train_state and dataloader beside the model's keys.
TEST(Dcp, FoldersOfSeveralMeshAxesAreExactAndKeepTheirKeys) {
  SKIP_WITHOUT_FIXTURES();
  for (const char* name : {"dcp_fsdp2_tp2", "dcp_pp2_fsdp2"}) {
    SCOPED_TRACE(name);
    const Path folder = fixtures() / "parallel" / name;
    const auto source = open_source(posix_storage(), folder / "checkpoint");
    compare_tensors(*source, folder / "expected.safetensors");
    const Json about = read_json(folder / "case.json");
    const Catalog& catalog = source->catalog();
    EXPECT_EQ(static_cast<double>(catalog.step), about["optimizer_step"][0].get<double>());
    EXPECT_EQ(catalog.world_size, 4u);
    EXPECT_TRUE(catalog.client_state["train_state"].contains("step")) << catalog.client_state;
    EXPECT_TRUE(catalog.client_state.contains("dataloader")) << catalog.client_state;
    std::size_t named = 0;
    for (const Json& group : catalog.groups) named += group["params"].size();
    std::set<std::string> trained;
    for (const TensorInfo& tensor : catalog.tensors) trained.insert(tensor.fqn);
    EXPECT_EQ(named, trained.size());
    const test::TempDir work;
    write_dcp(*source, work.path() / "out", 3, source->layout());
    expect_same_keys(*source, *open_dcp(posix_storage(), work.path() / "out"));
  }
}

TEST(MegatronCore, ParametersHaveTheirMomentsAndMasters) {
  SKIP_WITHOUT_FIXTURES();
  for (const auto& [name, step] : {std::pair{"mcore_tp2_pp2", 3}, {"mcore_ep2_dp2", 2}}) {
    const Path folder = test::fixtures() / "parallel" / name;
    const auto source = open_source(posix_storage(), folder / "checkpoint");
    compare_tensors(*source, folder / "expected.safetensors");
    const Catalog& catalog = source->catalog();
    EXPECT_EQ(catalog.step, step);
    ASSERT_EQ(catalog.groups.size(), 1u);
    EXPECT_EQ(catalog.groups[0]["params"].size(), catalog.tensors.size() / 4);
    EXPECT_FALSE(catalog.scheduler.is_null());
    EXPECT_EQ(catalog.client_state["iteration"], step);
  }
}

/// Copies a run of Megatron-Core with other content of common.pt, and returns the iteration.
Path with_common(const test::TempDir& work, const Json& common) {
  const Path run = work.path() / "run", step = run / "iter_0000003";
  std::filesystem::remove_all(run);
  std::filesystem::copy(test::fixtures() / "parallel/mcore_tp2_pp2/checkpoint", run,
                        std::filesystem::copy_options::recursive);
  std::filesystem::remove(step / "common.pt");
  save_torch(step / "common.pt", common, {}, "common");
  return step;
}

TEST(MegatronCore, CommonFileOfAnotherIterationIsDoubted) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir work;
  const auto open = [&](int iteration, int step) {
    const Json groups = Json::array({{{"lr", 0.1}, {"step", step}}});
    return open_source(
        posix_storage(),
        with_common(work, {{"iteration", iteration}, {"optimizer", {{"param_groups", groups}}}}));
  };
  EXPECT_THAT(open(3, 3)->remarks(), testing::IsEmpty());
  EXPECT_THAT(open(3, 2)->remarks(), testing::IsEmpty());  // a step was skipped
  EXPECT_THAT(open(99, 3)->remarks(),
              testing::ElementsAre(HasSubstr("says iteration 99, and the folder is iter_0000003")));
  EXPECT_THAT(open(3, 99)->remarks(), testing::ElementsAre(HasSubstr("counts 99 steps")));
}

TEST(MegatronCore, CommonFileWithoutItsOptimizerLosesTheSettings) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir work;
  const Losses losses =
      open_source(posix_storage(), with_common(work, {{"iteration", 3}}))->losses();
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses.front().role, Role::Setting);
  EXPECT_THAT(losses.front().why, HasSubstr("settings of the parameter groups"));
}

TEST(MegatronCore, ADamagedCommonFileLeavesTheModel) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir work;
  const Path run =
      test::copy_folder(fixtures() / "parallel/mcore_tp2_pp2/checkpoint", work.path() / "run");
  std::filesystem::resize_file(run / "iter_0000003/common.pt", 1000);
  const auto source = open_source(posix_storage(), run);
  ASSERT_EQ(source->losses().size(), 1u);
  EXPECT_EQ(source->losses().front().name, "common.pt");
  EXPECT_TRUE(source->losses().front().is_broken);
  EXPECT_FALSE(source->catalog().tensors.empty());
}

TEST(MegatronCore, MastersThatDoNotRoundToTheWeightsAreNoted) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir work;
  const Path whole = test::fixtures() / "parallel/mcore_tp2_pp2/checkpoint";
  const Path run = work.path() / "run", step = run / "iter_0000003";
  std::filesystem::copy(whole, run, std::filesystem::copy_options::recursive);
  EXPECT_THAT(open_source(posix_storage(), run)->notes(), testing::IsEmpty());
  std::filesystem::copy_file(step / "__0_0.distcp", step / "__0_1.distcp",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(
      open_source(posix_storage(), run)->notes(),
      testing::ElementsAre(testing::AllOf(HasSubstr("masters of"), HasSubstr("do not round"))));
}

TEST(MegatronCore, MomentsWithoutMetadataJsonAreNoWeights) {
  SKIP_WITHOUT_FIXTURES();
  const test::TempDir work;
  const Path run = test::fixtures() / "parallel/mcore_tp2_pp2/checkpoint";
  std::filesystem::copy(run, work.path() / "run", std::filesystem::copy_options::recursive);
  std::filesystem::remove(work.path() / "run/iter_0000003/metadata.json");
  const auto whole = open_source(posix_storage(), run),
             source = open_source(posix_storage(), work.path() / "run");
  ASSERT_EQ(source->catalog().tensors.size(), whole->catalog().tensors.size());
  for (const TensorInfo& tensor : whole->catalog().tensors)
    EXPECT_TRUE(source->catalog().find(tensor.fqn, tensor.state)) << tensor.label();
  EXPECT_EQ(source->catalog().step, 3);
  EXPECT_THAT(source->losses(), testing::IsEmpty());
  EXPECT_THAT(source->remarks(), testing::ElementsAre(HasSubstr("metadata.json is missing")));
}

TEST(MegatronCore, IterationsAreTags) {
  SKIP_WITHOUT_FIXTURES();
  const Path run = test::fixtures() / "parallel/mcore_tp2_pp2/checkpoint";
  EXPECT_EQ(open_source(posix_storage(), run, "iter_0000003")->catalog().step, 3);
  EXPECT_THROW(open_source(posix_storage(), run, "iter_0000009"), Error);
  const auto tags = list_tag_folders(posix_storage(), run);
  ASSERT_EQ(tags.size(), 1u);
  EXPECT_EQ(tags[0].tag, "iter_0000003");
  EXPECT_EQ(tags[0].format, "dcp");
}

}  // namespace
}  // namespace unishard::converters
