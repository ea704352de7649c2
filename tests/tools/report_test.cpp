// What `unishard report` shows, from catalogs and real checkpoints.
#include "workflows/report/report.hpp"

#include "unishard/format/checkpoint_reader.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/partition.hpp"

#include "expect.hpp"
#include "fault_storage.hpp"
#include "make_checkpoint.hpp"
#include "temp_dir.hpp"
#include "views/report/page.hpp"
#include "views/report/report_json.hpp"
#include "workflows/name_parts.hpp"
#include "workflows/report/finding_advice.hpp"
#include "workflows/report/layer_groups.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

namespace unishard::tools {
namespace {

using test::error_of;
using test::Fails;
using test::TempDir;
using test::write_example;

TensorInfo measured(std::string fqn, std::string_view state, double rms, Shape shape = {8, 8}) {
  TensorInfo tensor{std::move(fqn),
                    std::string(state),
                    DType::Float32,
                    std::move(shape),
                    0,
                    false,
                    false,
                    {},
                    {}};
  const std::uint64_t count = tensor.elements();
  tensor.stats = Stats{.count = count,
                       .min = -rms,
                       .max = rms,
                       .sum_squares = rms * rms * static_cast<double>(count)};
  if (state == state::kExpAvgSq) tensor.stats->min = 0;
  return tensor;
}

/// A model whose parameters have masters and both moments.
Catalog healthy(std::uint32_t layers) {
  Catalog catalog;
  catalog.step = 100;
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    const std::string fqn = fmt::format("h.{}.weight", layer);
    catalog.tensors.push_back(measured(fqn, state::kFp32, 0.02));
    catalog.tensors.push_back(measured(fqn, state::kExpAvg, 1e-4));
    catalog.tensors.push_back(measured(fqn, state::kExpAvgSq, 1e-6));
  }
  return catalog;
}

std::set<std::string> codes_of(const std::vector<Outlier>& outliers) {
  std::set<std::string> codes;
  for (const Outlier& outlier : outliers) codes.insert(outlier.code);
  return codes;
}

TEST(NameParts, ANameFollowsFromItsParts) {
  const NameParts parts = split_name("model.layers.12.experts.3.w1.weight");
  EXPECT_EQ(parts.texts, (std::vector<std::string>{"model.layers.", ".experts.", ".w1.weight"}));
  EXPECT_EQ(parts.numbers, (std::vector<std::uint32_t>{12, 3}));
  for (const char* name : {"", ".", "..", "0", "7.", ".7", "1.2", "a.0.b", "007.a", "a.1234567.b",
                           "h.0000001", "a..3..b", "\u00e9.4"}) {
    const NameParts split = split_name(name);
    std::string joined = split.texts.at(0);
    for (std::size_t i = 0; i < split.numbers.size(); ++i)
      joined += std::to_string(split.numbers[i]) + split.texts.at(i + 1);
    EXPECT_EQ(joined, name);
  }
  EXPECT_EQ(split_name("wte.weight").layer(), std::nullopt);
  EXPECT_EQ(split_name("007.a").layer(), std::nullopt);
}

TEST(LayerGroups, ConsecutiveLayersShareAGroup) {
  Catalog catalog = healthy(30);
  catalog.tensors.push_back(measured("wte", state::kFp32, 1));
  const LayerGroups groups(catalog, 10);
  EXPECT_EQ(groups.labels().size(), 11u);
  EXPECT_EQ(groups.labels()[groups.group_of("h.0.weight")], "h.0-2");
  EXPECT_EQ(groups.labels()[groups.group_of("h.29.bias")], "h.27-29");
  EXPECT_EQ(groups.group_of("wte"), 0u);
  EXPECT_EQ(groups.group_of("h.99.weight"), 0u);
}

TEST(LayerGroups, ManyFamiliesOfLayersStayFew) {
  Catalog catalog;
  for (int i = 0; i < 500; ++i)
    catalog.tensors.push_back(measured(fmt::format("block_{}.0.w", i), state::kFp32, 1));
  EXPECT_LE(LayerGroups(catalog, 12).labels().size(), 26u);
}

TEST(Outliers, AHealthyModelHasNone) { EXPECT_TRUE(find_outliers(healthy(12)).empty()); }

TEST(Outliers, EachKindIsFoundInTheRightTensor) {
  const Catalog sound = healthy(12);
  const auto found = [&](std::size_t tensor, auto change) {
    Catalog catalog = sound;
    change(catalog.tensors[tensor]);
    const std::vector<Outlier> outliers = find_outliers(catalog);
    for (const Outlier& outlier : outliers) {
      EXPECT_EQ(catalog.tensors[outlier.tensor].fqn, catalog.tensors[tensor].fqn);
    }
    return codes_of(outliers);
  };
  using Codes = std::set<std::string>;
  const auto zero = [](TensorInfo& t) { t.stats->min = t.stats->max = t.stats->sum_squares = 0; };
  const auto times = [](double factor) {
    return [factor](TensorInfo& t) { t.stats->sum_squares *= factor * factor; };
  };
  EXPECT_EQ(found(3, [](TensorInfo& t) { t.stats->nan_count = 2; }), Codes{"nan"});
  EXPECT_EQ(found(4, [](TensorInfo& t) { t.stats->inf_count = 1; }), Codes{"inf"});
  EXPECT_EQ(found(5, [](TensorInfo& t) { t.stats->min = -1e-9; }), Codes{"negative-variance"});
  EXPECT_EQ(found(3, zero), Codes{"all-zero"});
  EXPECT_EQ(found(4, zero), Codes{"all-zero"});
  EXPECT_EQ(found(3, times(40)), Codes{"scale"});
  EXPECT_EQ(found(3, times(1 / 40.0)), Codes{"scale"});
  EXPECT_EQ(found(3, times(20)), Codes{});
  EXPECT_EQ(found(4, times(200)), (Codes{"scale", "update-ratio"}));
  EXPECT_EQ(found(4, times(1 / 200.0)), (Codes{"scale", "update-ratio"}));
  EXPECT_EQ(found(5, times(1e5)), (Codes{"scale", "update-ratio"}));
}

TEST(Outliers, ErrorsComeFirst) {
  Catalog catalog = healthy(12);
  catalog.tensors[0].stats->sum_squares *= 1e6;
  catalog.tensors[30].stats->nan_count = 1;
  const std::vector<Outlier> outliers = find_outliers(catalog);
  ASSERT_EQ(outliers.size(), 2u);
  EXPECT_EQ(outliers[0].code, "nan");
  EXPECT_EQ(outliers[0].level, Level::Error);
  EXPECT_EQ(outliers[1].level, Level::Warning);
}

TEST(Outliers, StatisticsThatCannotBeAreNoNumbers) {
  Catalog catalog = healthy(200);
  for (std::size_t i = 0; i < catalog.tensors.size(); i += 2)
    catalog.tensors[i].stats->sum_squares = i % 4 == 0 ? -1 : std::nan("");
  for (const TensorInfo& tensor : catalog.tensors) EXPECT_GE(rms_of(tensor), 0);
  EXPECT_TRUE(find_outliers(catalog).empty());
}

TEST(Outliers, WhatIsZeroAtTheStartIsNone) {
  Catalog catalog = healthy(12);
  catalog.step = 0;
  for (TensorInfo& tensor : catalog.tensors) {
    if (tensor.state != state::kFp32) tensor.stats = Stats{.count = 64};
  }
  TensorInfo bias = measured("h.0.bias", state::kFp32, 0, {64});
  catalog.tensors.push_back(bias);
  EXPECT_TRUE(find_outliers(catalog).empty());
}

/// A tensor of two elements.
TensorInfo pair_of(std::string fqn, double x, double y) {
  TensorInfo tensor = measured(std::move(fqn), state::kFp32, 1, {2});
  tensor.stats->sum_squares = x * x + y * y;
  return tensor;
}

TEST(StepHistory, TheChangeIsALowerBoundOfTheDistance) {
  Catalog before, after;
  before.tensors = {pair_of("h.0.a", 3, 4), pair_of("h.0.b", 1, 0)};
  after.tensors = {pair_of("h.0.b", 0, 2), pair_of("h.0.a", 6, 8)};
  StepHistory history(before);
  history.add(before);
  history.add(after);
  const auto points = history.points({0, 1});
  const std::size_t group = 1;
  EXPECT_DOUBLE_EQ(points.at(0).at(group).at(0).norm, std::sqrt(26.0));
  EXPECT_EQ(points[0][group][0].changed_tensors, 0u);
  EXPECT_DOUBLE_EQ(points[1][group][0].norm, std::sqrt(104.0));
  EXPECT_EQ(points[1][group][0].changed_tensors, 2u);
  EXPECT_DOUBLE_EQ(points[1][group][0].least_change, std::sqrt(26.0));  // changes of 5 and 1
  EXPECT_LE(points[1][group][0].least_change, std::sqrt(9.0 + 16 + 1 + 4));
}

TEST(StepHistory, MissingStatisticsAreNoZeros) {
  Catalog first, second;
  first.tensors = {pair_of("a", 3, 4)};
  second.tensors = {pair_of("a", 3, 4), pair_of("new", 1, 1)};
  second.tensors[0].stats.reset();
  StepHistory history(first);
  history.add(first);
  history.add(second);
  EXPECT_EQ(history.points({0, 1}).at(1).at(0).at(0).tensors, 0u);
}

TEST(OwnershipOf, EveryByteHasAnOwnerAndTheMatrixStaysSmall) {
  struct Case {
    std::uint32_t world, stage, layers;
  };
  for (const auto& [world, stage, layers] :
       {Case{1, 0, 60}, {3, 2, 60}, {16, 3, 2}, {17, 0, 2}, {100, 2, 2}, {1024, 3, 60}}) {
    Description description;
    description.catalog = test::example_catalog(
        {.world_size = world, .stage = stage, .bf16 = true, .layers = layers});
    const Catalog& catalog = description.catalog;
    description.owners.resize(catalog.tensors.size());
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      for (const Fragment& fragment : plan_shard(catalog, rank))
        description.owners[fragment.tensor].push_back({rank, fragment.range});
    }
    const Ownership owned = ownership(description);
    EXPECT_LE(owned.ranks.size(), kOwnershipColumns);
    EXPECT_LE(owned.units.size(), kOwnershipRows);
    EXPECT_EQ(owned.rank_bytes.size(), world);
    std::uint64_t cells = 0;
    for (const auto& row : owned.bytes) cells = std::accumulate(row.begin(), row.end(), cells);
    EXPECT_EQ(cells,
              std::accumulate(owned.rank_bytes.begin(), owned.rank_bytes.end(), std::uint64_t{0}));
    EXPECT_EQ(cells, catalog.stored_bytes()) << world << " " << stage;
  }
}

class ReportOf : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return temp_.path() / name; }
  static Report report(const std::vector<std::string>& paths, ReportOptions options = {}) {
    options.transfer = {.threads = 2, .buffer_bytes = 1 << 20};
    return make_report(posix_storage(), paths, options);
  }
  static std::string page(const Report& report) {
    return cli::report_page(cli::report_page_data(report));
  }

  const TempDir temp_;
};

TEST_F(ReportOf, TheOwnersAreThoseOfTheShards) {
  write_example(path("run"), {.world_size = 5, .stage = 3, .bf16 = true});
  const Report made = report({path("run")});
  const auto reader = open_checkpoint(posix_storage(), path("run"), {});
  ASSERT_EQ(made.owned.rank_bytes.size(), 5u);
  for (std::uint32_t rank = 0; rank < 5; ++rank) {
    std::uint64_t bytes = 0;
    for (const Fragment& fragment : plan_shard(reader->catalog(), rank)) {
      const TensorInfo& tensor = reader->catalog().tensors[fragment.tensor];
      if (!tensor.derived) bytes += fragment.range.size() * size_of(tensor.dtype);
    }
    EXPECT_EQ(made.owned.rank_bytes[rank], bytes) << rank;
  }
}

TEST_F(ReportOf, SeveralCheckpointsAreInTheOrderOfTheirSteps) {
  write_example(path("run"), {.step = 9, .tag = "nine"});
  write_example(path("run"), {.seed = 2, .step = 100, .tag = "hundred"});
  write_example(path("run"), {.step = 20, .tag = "twenty", .changed = "h.0.attn.weight"});
  const Report made = report({path("run")}, {.tag = "nine", .all_tags = true});
  ASSERT_EQ(made.checkpoints.size(), 3u);
  EXPECT_EQ(made.checkpoints[0].description.tag, "nine");
  EXPECT_EQ(made.checkpoints[1].description.tag, "twenty");  // the newest
  EXPECT_EQ(made.history_order, (std::vector<std::size_t>{0, 1, 2}));
  ASSERT_TRUE(made.comparison);
  EXPECT_EQ(made.comparison->different, 3u);  // master and both moments
  EXPECT_EQ(made.comparison->equal + made.comparison->different, made.checkpoints[0].tensors);
  EXPECT_FALSE(made.comparison->read);
}

TEST_F(ReportOf, AllTakesTheOthersBesideOneTagsFolder) {
  const Path tag = write_example(path("run"), {.step = 7, .tag = "seven"});
  write_example(path("run"), {.step = 8, .tag = "eight"});
  EXPECT_EQ(report({tag.string()}, {.all_tags = true}).checkpoints.size(), 2u);
}

TEST_F(ReportOf, AllNamesWhatIsNotSupportedAndCallsItNoDamage) {
  write_example(path("run"), {.step = 7, .tag = "seven"});
  for (const char* name : {"a", "b"})
    test::write_file(Path(path("run")) / "evals" / (std::string(name) + ".safetensors"), "x");
  const Report made = report({path("run")}, {.all_tags = true});
  EXPECT_TRUE(made.is_clean());
  ASSERT_EQ(made.checkpoints.size(), 2u);
  EXPECT_THAT(made.checkpoints[1].problem, testing::HasSubstr("2 safetensors files"));
}

/// Removes a folder just before the n-th file below it is opened, as a training's retention may.
class RemovesMeanwhile final : public test::FaultStorage {
 public:
  RemovesMeanwhile(Path folder, int at) : folder_(std::move(folder)), at_(at) {}

  std::unique_ptr<File> open(const Path& path) override {
    if (path.parent_path() == folder_ && ++opened_ == at_) std::filesystem::remove_all(folder_);
    return FaultStorage::open(path);
  }
  bool was_removed() const { return opened_ >= at_; }

 private:
  const Path folder_;
  const int at_;
  int opened_ = 0;
};

TEST_F(ReportOf, AllLeavesOutWhatATrainingRemovesMeanwhile) {
  const auto report_with = [&](int at) {
    const Path removed = write_example(path("run"), {.step = 7, .tag = "seven"});
    if (at == 1) write_example(path("run"), {.step = 8, .tag = "eight"});
    RemovesMeanwhile storage(removed, at);
    const Report made = make_report(storage, {path("run")}, {.tag = "eight", .all_tags = true});
    EXPECT_TRUE(made.is_clean()) << at;
    EXPECT_EQ(made.checkpoints.front().description.tag, "eight");
    return storage.was_removed();
  };
  int at = 1;
  while (report_with(at)) ++at;
  EXPECT_GT(at, 5) << "it was removed at each of several moments";
}

TEST_F(ReportOf, ReadingDecidesAsDigestsDo) {
  write_example(path("run"), {.seed = 1, .tag = "a"});
  write_example(path("run"), {.seed = 2, .tag = "b"});
  const auto a = converters::open_source(posix_storage(), path("run"), "a");
  const auto b = converters::open_source(posix_storage(), path("run"), "b");
  const TransferOptions transfer{.threads = 2, .buffer_bytes = 1 << 20};
  const DigestComparison tables = compare_digests(*a, *b, false, transfer);
  const DigestComparison read = compare_digests(*a, *b, true, transfer);
  EXPECT_EQ(tables.tensors, read.tensors);
  EXPECT_EQ(tables.equal, 1u);  // the empty tensor
  EXPECT_FALSE(tables.read);
  EXPECT_GT(read.read->bytes_read, 0u);
}

TEST_F(ReportOf, ADamagedCheckpointIsDescribedByItsManifest) {
  const Path tag = write_example(path("run"), {});
  std::filesystem::remove(tag / "shard-00001-of-00003.h5");
  const Report made = report({path("run")});
  EXPECT_FALSE(made.is_clean());
  ASSERT_EQ(made.described.size(), 1u);
  EXPECT_NE(made.checkpoints[0].problem, "");
  EXPECT_TRUE(made.checkpoints[0].has_stats);
  EXPECT_TRUE(made.owned.empty());
  test::write_file(tag / "manifest.json", "not a manifest");
  const Report worse = report({path("run")});
  EXPECT_FALSE(worse.is_clean());
  EXPECT_TRUE(worse.described.empty());
  EXPECT_NE(page(worse).find("manifest-unreadable"), std::string::npos);
}

TEST_F(ReportOf, WhatIsNoCheckpointIsAnError) {
  EXPECT_THAT(error_of([&] { report({path("none")}); }), Fails(ErrorCode::NotFound));
  test::write_file(path("text"), "hello");
  EXPECT_THAT(error_of([&] { report({path("text")}); }), Fails(ErrorCode::Unsupported));
}

TEST(FindingAdvice, EveryFindingHasOne) {
  const Finding stray{
      .code = "stray-file", .path = {}, .message = {}, .hint = {}, .bytes = {}, .lost = {}};
  Finding lost = stray;
  lost.code = "chunk-damaged";
  lost.lost = {{"w [fp32]", {0, 4}}};
  Finding hinted = lost;
  hinted.hint = "do this";
  EXPECT_EQ(level_of(stray), Level::Warning);
  EXPECT_EQ(level_of(lost), Level::Error);
  EXPECT_NE(advice_for(stray), "");
  EXPECT_NE(advice_for(lost), advice_for(stray));
  EXPECT_EQ(advice_for(hinted), "do this");
}

/// A report of a catalog that is in no file.
Report report_of(Catalog catalog) {
  Report report;
  ReportedCheckpoint& checkpoint = report.checkpoints.emplace_back();
  checkpoint.tensors = catalog.tensors.size();
  checkpoint.is_described = checkpoint.has_stats = true;
  checkpoint.description.format = "native";
  checkpoint.description.catalog = std::move(catalog);
  report.described = {0};
  return report;
}

TEST(ReportPage, TwentyThousandTensorsTakeAtMostThreeMegabytes) {
  Catalog catalog;
  std::uint64_t number = 1;
  for (std::uint32_t layer = 0; layer < 61; ++layer) {
    for (std::uint32_t expert = 0; expert < 83; ++expert) {
      for (const char* state : {"fp32", "exp_avg", "exp_avg_sq", "weights"}) {
        TensorInfo tensor = measured(
            fmt::format("model.layers.{}.mlp.experts.{}.gate_up_projection.weight", layer, expert),
            state, 1.0 / static_cast<double>(number * 7919), {4096, 1536});
        tensor.crc64 = number++ * 0x9e3779b97f4a7c15u;
        catalog.tensors.push_back(std::move(tensor));
      }
    }
  }
  ASSERT_GT(catalog.tensors.size(), 20'000u);
  const std::string page = cli::report_page(cli::report_page_data(report_of(std::move(catalog))));
  EXPECT_LE(page.size(), 3'000'000u);
}

TEST(ReportPage, NoNameEndsTheScriptOrReachesTheTerminal) {
  const std::vector<std::string> names = {"</script><script>alert(1)</script>",
                                          "<!--<script>",
                                          "\"'`&<>\\",
                                          "\u202egnp.exe\u2066",
                                          "\x1b[2J\x7f",
                                          std::string(4096, '<'),
                                          "{{script}}",
                                          "{{data}}"};
  Catalog catalog;
  for (const std::string& name : names) catalog.tensors.push_back(measured(name, "fp32", 1));
  catalog.producer = {{"</script>", "</script>"}};
  const std::string page = cli::report_page(cli::report_page_data(report_of(std::move(catalog))));
  EXPECT_TRUE(page.starts_with(cli::report_mark()));
  const std::string opening = "<script type=\"application/json\" id=\"data\">";
  const std::size_t begin = page.find(opening) + opening.size();
  const std::string data = page.substr(begin, page.find("</script>", begin) - begin);
  EXPECT_EQ(data.find('<'), std::string::npos);
  EXPECT_EQ(data.find("\u202e"), std::string::npos);
  EXPECT_EQ(data.find('\x7f'), std::string::npos);
  const Json json = Json::parse(data);
  for (std::size_t i = 0; i < names.size(); ++i)
    EXPECT_EQ(json["tensors"]["patterns"][i][0], names[i]);
  EXPECT_EQ(page.find("</script>", page.find("</script>", begin) + 1), page.rfind("</script>"));
}

TEST(ReportPage, FreeFormSectionsAreCut) {
  Catalog catalog = healthy(1);
  Json deep = 1;
  for (int i = 0; i < 50; ++i) deep = Json::array({deep});
  catalog.producer = {{"long", std::string(100'000, 'x')}, {"deep", deep}};
  catalog.groups = Json::array({{{"params", std::vector<int>(50'000, 7)}}});
  EXPECT_LE(cli::report_page_data(report_of(std::move(catalog))).dump().size(), 5'000u);
}

}  // namespace
}  // namespace unishard::tools
