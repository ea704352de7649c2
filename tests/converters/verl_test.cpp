// The folders of verl, as two ranks of FSDP2 write them.
#include "unishard/converters/registry.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "rank_file_writer.hpp"
#include "temp_dir.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>

namespace unishard::converters {
namespace {

using test::error_of;
using test::Fails;
using test::TempDir;
using test::write_file;
using testing::ElementsAre;
using testing::HasSubstr;

/// The rows of a rank of a parameter of two rows.
void add_rows(RankFileWriter& file, std::uint64_t rank, std::uint64_t columns, float first) {
  std::vector<float> values;
  for (std::uint64_t i = 0; i < columns; ++i)
    values.push_back(first + static_cast<float>(rank * columns + i));
  file.dtensor({2, columns}, {1, columns}, values, {2}, {rank}, {{"Shard", 0}});
}

/// Appends "state" and "param_groups" of two parameters with two rows and these columns.
void add_optimizer(RankFileWriter& file, std::uint64_t rank,
                   const std::vector<std::uint64_t>& columns, float steps) {
  file.pickle.str("state");
  file.pickle.begin_dict();
  for (std::size_t number = 0; number < columns.size(); ++number) {
    file.pickle.integer(static_cast<std::int64_t>(number));
    file.pickle.begin_dict();
    file.pickle.str("step");
    file.plain({}, {steps});
    file.pickle.str("exp_avg");
    add_rows(file, rank, columns[number], 100 * static_cast<float>(number + 1));
    file.pickle.end_dict();
  }
  file.pickle.end_dict();
  file.one_group(columns.size());
}

class VerlRun : public testing::Test {
 protected:
  /// Saves the weights a and b of one shape, a buffer of that shape between them, and their
  /// moments.
  static void save(const Path& folder, float steps = 3) {
    std::filesystem::create_directories(folder);
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
      const std::string end = fmt::format("_world_size_2_rank_{}.pt", rank);
      RankFileWriter model;
      model.pickle.begin_ordered_dict();
      model.pickle.str("a");
      add_rows(model, rank, 3, 10);
      model.pickle.str("mask");
      model.plain({2, 3}, {1, 1, 1, 1, 1, 1});
      model.pickle.str("b");
      add_rows(model, rank, 3, 20);
      model.pickle.end_dict();
      model.write(folder / ("model" + end));
      save_optimizer(folder / ("optim" + end), rank, steps);
      RankFileWriter extra;
      extra.pickle.begin_dict();
      extra.pickle.str("lr_scheduler");
      extra.pickle.begin_dict();
      extra.pickle.str("last_epoch");
      extra.pickle.integer(3);
      extra.pickle.end_dict();
      extra.pickle.str("rng");
      extra.plain({1}, {static_cast<float>(rank)});
      extra.pickle.end_dict();
      extra.write(folder / ("extra_state" + end));
    }
    write_file(folder / "fsdp_config.json", R"({"FSDP_version": 2, "world_size": 2})");
  }

  static void save_optimizer(const Path& path, std::uint64_t rank, float steps) {
    RankFileWriter file;
    file.pickle.begin_dict();
    add_optimizer(file, rank, {3, 3}, steps);
    file.pickle.end_dict();
    file.write(path);
  }

  static std::vector<float> floats(const Source& source, const std::string& fqn,
                                   std::string_view state) {
    const auto found = source.catalog().find(fqn, state);
    if (!found) return {};
    std::vector<float> out(source.catalog().tensors[*found].elements());
    source.read(*found, {0, out.size()}, std::as_writable_bytes(std::span(out)));
    return out;
  }
  std::unique_ptr<Source> open() const { return open_source(posix_storage(), run_); }
  Error refusal() const {
    return error_of([&] { open(); });
  }
  std::vector<std::string> losses() const { return lines_of(open()->losses()); }

  const TempDir temp_;
  const Path run_ = temp_.path() / "run", step_ = run_ / "global_step_10", actor_ = step_ / "actor";
};

TEST_F(VerlRun, FilesWithOtherNamesAreAModelWhereTheyHoldDistributedTensors) {
  const TempDir temp;
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    RankFileWriter model;
    model.pickle.begin_ordered_dict();
    model.pickle.str("a");
    add_rows(model, rank, 3, 10);
    model.pickle.end_dict();
    model.write(temp.path() / fmt::format("rank_{}.pt", rank));
  }
  const auto source = open_source(posix_storage(), temp.path());
  const auto found = source->catalog().find("a", state::kWeights);
  ASSERT_TRUE(found);
  EXPECT_EQ(source->catalog().tensors[*found].shape, (Shape{2, 3}));
}

/// Opens dicts, one in the other, for the keys of `path`.
void begin_below(RankFileWriter& file, const std::vector<std::string>& path) {
  for (const std::string& key : path) {
    file.pickle.str(key);
    file.pickle.begin_dict();
  }
}

/// Two ranks' files of a training state, whatever its parts are called. A part below the one before
/// is in its dict.
TEST(RankFilesOfATrainingState, HaveStatesAndGroupsUnderAnyNames) {
  struct Case {
    std::vector<std::string> outer, model, optimizer;
  };
  const std::vector<Case> cases = {
      {{}, {"model"}, {"optimizer"}},
      {{}, {"net"}, {"solver"}},
      {{}, {"model_state_dict"}, {"optimizer_state_dict"}},
      {{}, {"module"}, {"opt"}},
      {{}, {"model"}, {"optimizers", "AdamW"}},
      {{"state"}, {"model"}, {"optimizers", "AdamW"}},
      {{"app"}, {"model"}, {"adam"}},
  };
  for (const auto& [outer, model, optimizer] : cases) {
    SCOPED_TRACE(model.front() + " and " + optimizer.front());
    const TempDir temp;
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
      RankFileWriter file;
      file.pickle.begin_dict();
      begin_below(file, outer);
      begin_below(file, model);
      file.pickle.str("a.weight");
      add_rows(file, rank, 3, 10);
      file.pickle.str("b.weight");
      add_rows(file, rank, 5, 20);
      for (std::size_t i = 0; i < model.size(); ++i) file.pickle.end_dict();
      begin_below(file, optimizer);
      add_optimizer(file, rank, {3, 5}, 3);
      for (std::size_t i = 0; i < outer.size() + optimizer.size() + 1; ++i) file.pickle.end_dict();
      file.write(temp.path() / fmt::format("rank_{}.pt", rank));
    }
    const auto source = open_source(posix_storage(), temp.path());
    const Catalog& catalog = source->catalog();
    std::vector<std::string> weights;
    for (const TensorInfo& tensor : catalog.tensors)
      if (tensor.state != "exp_avg") weights.push_back(tensor.fqn);
    EXPECT_THAT(weights, testing::UnorderedElementsAre("a.weight", "b.weight"));
    EXPECT_EQ(catalog.tensors.size(), 4u);
    EXPECT_EQ(catalog.groups.size(), 1u);
    EXPECT_EQ(catalog.step, 3u);
  }
}

TEST(RankFiles, OfAReplicaHaveTheNamesOfTheModel) {
  const TempDir temp;
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    RankFileWriter file;
    file.pickle.begin_ordered_dict();
    for (const char* name : {"module.a", "module.b"}) {
      file.pickle.str(name);
      add_rows(file, rank, 2, 10);
    }
    file.pickle.end_dict();
    file.write(temp.path() / fmt::format("model_world_size_2_rank_{}.pt", rank));
  }
  const auto source = open_source(posix_storage(), temp.path());
  EXPECT_TRUE(source->catalog().find("a", state::kWeights));
  EXPECT_TRUE(source->catalog().find("b", state::kWeights));
}

/// What a rank's file has of `b` beside `a`, two parameters of one shape.
enum class Beside : std::uint8_t { Shared, Own, Nothing };

/// Writes the files of two ranks; the tensors are DTensors or plain ones.
void save_pairs(const Path& folder, const std::array<Beside, 2>& ranks, bool are_distributed) {
  for (std::uint64_t rank = 0; rank < ranks.size(); ++rank) {
    RankFileWriter file;
    const auto add = [&](const char* name, float first) {
      file.pickle.str(name);
      if (are_distributed) return add_rows(file, rank, 2, first);
      file.plain({1}, {first});
    };
    file.pickle.begin_ordered_dict();
    add("a", 10);
    file.shares_last = ranks[rank] == Beside::Shared;
    if (ranks[rank] != Beside::Nothing) add("b", file.shares_last ? 10 : 20);
    file.pickle.end_dict();
    file.write(folder / fmt::format("model_world_size_2_rank_{}.pt", rank));
  }
}

TEST(RankFilesOfTiedParameters, AreOfOneTensorWhereAllRanksShareIt) {
  for (const bool are_distributed : {true, false}) {
    const TempDir temp;
    save_pairs(temp.path(), {Beside::Shared, Beside::Shared}, are_distributed);
    const auto source = open_source(posix_storage(), temp.path());
    EXPECT_EQ(source->catalog().tensors.size(), 1u);
    ASSERT_EQ(source->catalog().aliases.size(), 1u);
    EXPECT_EQ(source->catalog().aliases[0].fqn, "b");
    EXPECT_THAT(source->notes(), testing::IsEmpty());
  }
}

TEST(RankFilesOfTiedParameters, AreOfTwoTensorsWhereOneRankSharesThem) {
  for (const std::array<Beside, 2>& ranks :
       {std::array{Beside::Shared, Beside::Own}, std::array{Beside::Own, Beside::Shared}}) {
    const TempDir temp;
    save_pairs(temp.path(), ranks, true);
    const auto source = open_source(posix_storage(), temp.path());
    const std::size_t b = source->catalog().find("b", state::kWeights).value();
    std::vector<float> values(4);
    source->read(b, {0, 4}, std::as_writable_bytes(std::span(values)));
    if (ranks[0] == Beside::Shared) {
      EXPECT_THAT(values, ElementsAre(10, 11, 22, 23));
    } else {
      EXPECT_THAT(values, ElementsAre(20, 21, 12, 13));
    }
  }
}

TEST(RankFilesOfTiedParameters, AreNotWholeWhereOneRankLacksAName) {
  for (const std::array<Beside, 2>& ranks :
       {std::array{Beside::Shared, Beside::Nothing}, std::array{Beside::Nothing, Beside::Shared}}) {
    const TempDir parts, copies;
    save_pairs(parts.path(), ranks, true);
    EXPECT_THAT(error_of([&] { open_source(posix_storage(), parts.path()); }),
                Fails(ErrorCode::Corrupt, {"model.b", "in no chunk"}));
    save_pairs(copies.path(), ranks, false);
    EXPECT_THAT(open_source(posix_storage(), copies.path())->notes(),
                testing::Contains(HasSubstr("alone has \"model.b\"")));
  }
}

TEST_F(VerlRun, LeadsToItsNewestStepAndTheStatesHaveTheModelsNames) {
  save(run_ / "global_step_9" / "actor");
  save(actor_, 30);
  write_file(run_ / "latest_checkpointed_iteration.txt", "10");
  const auto source = open();
  EXPECT_EQ(source->path(), actor_);
  EXPECT_THAT(floats(*source, "b", "exp_avg"), ElementsAre(200, 201, 202, 203, 204, 205));
  EXPECT_THAT(floats(*source, "mask", state::kBuffer), ElementsAre(1, 1, 1, 1, 1, 1));
  EXPECT_EQ(source->catalog().scheduler["last_epoch"], 3);
  EXPECT_THAT(losses(), ElementsAre(HasSubstr("rng")));
  const OpenOptions older{.tag = "global_step_9"};
  EXPECT_EQ(open_source(posix_storage(), run_, older)->path(), run_ / "global_step_9" / "actor");
  EXPECT_EQ(open_source(posix_storage(), step_)->path(), actor_);
}

TEST_F(VerlRun, ThatDoesNotSayWhichModelOrStepIsMeantIsRefused) {
  save(actor_);
  save(run_ / "global_step_9" / "actor");
  EXPECT_THAT(refusal(), Fails(ErrorCode::InvalidArgument, {"latest_checkpointed_iteration.txt"},
                               "global_step_9, global_step_10"));
  write_file(run_ / "latest_checkpointed_iteration.txt", "11\n");
  EXPECT_THAT(refusal(), Fails(ErrorCode::NotFound, {"\"11\""}, "global_step_9, global_step_10"));
  write_file(run_ / "latest_checkpointed_iteration.txt", "10\n");
  save(step_ / "critic");
  EXPECT_THAT(refusal(), Fails(ErrorCode::InvalidArgument, {"2 models"}, "actor"));
}

TEST_F(VerlRun, LosesTheOptimizerOrTheScheduleWhereAFileIsMissing) {
  save(actor_);
  write_file(run_ / "latest_checkpointed_iteration.txt", "10");
  std::filesystem::remove(actor_ / "extra_state_world_size_2_rank_1.pt");
  EXPECT_THAT(losses(),
              testing::Contains(testing::AllOf(HasSubstr("extra_state_world_size_2"),
                                               HasSubstr("missing the file of rank 1 of 2"))));
  std::filesystem::remove(actor_ / "optim_world_size_2_rank_1.pt");
  EXPECT_THAT(losses(),
              testing::Contains(testing::AllOf(HasSubstr("optim_world_size_2"),
                                               HasSubstr("missing the file of rank 1 of 2"))));
  EXPECT_THAT(floats(*open(), "a", state::kWeights), ElementsAre(10, 11, 12, 13, 14, 15));
}

TEST_F(VerlRun, OfWhichARankIsOfAnotherSaveIsRefused) {
  save(actor_);
  write_file(run_ / "latest_checkpointed_iteration.txt", "10");
  std::filesystem::remove(actor_ / "optim_world_size_2_rank_1.pt");
  save_optimizer(actor_ / "optim_world_size_2_rank_1.pt", 1, 2);
  const auto is_mixed = Fails(ErrorCode::Corrupt, {".step", "not of one save"});
  EXPECT_THAT(refusal(), is_mixed);
  const OpenOptions chosen{.from_rank = 0};
  EXPECT_THAT(error_of([&] { open_source(posix_storage(), run_, chosen); }), is_mixed);
}

TEST_F(VerlRun, OfAnotherNumberOfRanksThanItsConfigurationSaysIsNotTrusted) {
  save(actor_);
  write_file(run_ / "latest_checkpointed_iteration.txt", "10");
  write_file(actor_ / "fsdp_config.json", R"({"FSDP_version": 2, "world_size": 4})");
  EXPECT_TRUE(open()->catalog().find("state.0", "exp_avg"));
}

}  // namespace
}  // namespace unishard::converters
