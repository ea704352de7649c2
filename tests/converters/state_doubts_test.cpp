#include "reading/state_doubts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace unishard::converters {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A run of Adam with three parameters of two dimensions.
class StateDoubts : public testing::Test {
 protected:
  StateDoubts() {
    Json names = Json::array(), steps = Json::object();
    for (const char* fqn : {"a", "b", "c"}) {
      for (const std::string_view state : {"fp32", "exp_avg", "exp_avg_sq"}) {
        TensorInfo tensor;
        tensor.fqn = fqn;
        tensor.state = state;
        tensor.shape = {6, 4};
        tensor.group = 0;
        catalog_.tensors.push_back(std::move(tensor));
      }
      names.push_back(fqn);
      steps[fqn] = 3;
    }
    catalog_.groups = Json::array({{{"lr", 0.1}, {"params", names}}});
    catalog_.client_state = {{"optimizer_scalars", {{"step", steps}}}};
  }
  TensorInfo& tensor(std::string_view fqn, std::string_view state) {
    return catalog_.tensors.at(*catalog_.find(fqn, state));
  }
  void drop(std::string_view fqn, std::string_view state) {
    catalog_.tensors.erase(catalog_.tensors.begin() +
                           static_cast<std::ptrdiff_t>(*catalog_.find(fqn, state)));
  }
  Json& steps() { return catalog_.client_state["optimizer_scalars"]["step"]; }
  Json& params() { return catalog_.groups[0]["params"]; }
  std::vector<std::string> doubts() const { return doubts_about_states(catalog_, losses_); }

  Catalog catalog_;
  Losses losses_;
};

TEST_F(StateDoubts, AWholeOptimizerHasNone) { EXPECT_THAT(doubts(), IsEmpty()); }

TEST_F(StateDoubts, MomentsOfAnotherShapeAreNamed) {
  tensor("b", "exp_avg_sq").shape = {5, 4};
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("b [exp_avg_sq] (5 x 4 beside 6 x 4)")));
}

TEST_F(StateDoubts, StatesOfParametersWithoutWeightsAreNamed) {
  drop("b", "fp32");
  EXPECT_THAT(doubts(),
              ElementsAre(testing::AllOf(HasSubstr("no weights here"), HasSubstr(": b"))));
  losses_.push_back({.role = Role::Weight, .name = "b"});
  EXPECT_THAT(doubts(), IsEmpty()) << "the loss says it";
}

TEST_F(StateDoubts, LowRanksHaveShapesOfTheirOwn) {
  tensor("b", "exp_avg_sq").shape = {5, 4};
  losses_.push_back({.role = Role::State, .name = "projector of 0"});
  EXPECT_THAT(doubts(), IsEmpty());
}

TEST_F(StateDoubts, NumberedMomentsOfNoParameterAreNamed) {
  for (const char* fqn : {"a", "b"}) {
    drop(fqn, "exp_avg_sq");
    drop(fqn, "exp_avg");
  }
  drop("c", "fp32");
  for (TensorInfo& tensor : catalog_.tensors) {
    if (tensor.fqn == "c") tensor.fqn = "state.2";
  }
  params() = {"state.2"};
  EXPECT_THAT(doubts(), IsEmpty());
  tensor("state.2", "exp_avg_sq").shape = {5, 4};
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("state.2 [exp_avg_sq] (5 x 4 beside 6 x 4)")));
  tensor("state.2", "exp_avg").shape = {5, 4};
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("of no parameter")));
}

TEST_F(StateDoubts, MoreNumberedMomentsOfAShapeThanParametersAreNamed) {
  for (const char* fqn : {"a", "b", "c"}) {
    drop(fqn, "exp_avg");
    drop(fqn, "exp_avg_sq");
  }
  catalog_.groups = nullptr;
  for (const char* number : {"state.0", "state.1", "state.2"}) {
    catalog_.tensors.push_back(catalog_.tensors.front());
    catalog_.tensors.back().fqn = number;
    catalog_.tensors.back().state = "exp_avg";
  }
  EXPECT_THAT(doubts(), IsEmpty());
  tensor("b", "fp32").shape = {3, 4};
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("3 of size (6 x 4), of which the model has 2")));
}

TEST_F(StateDoubts, SettingsThatEveryOptimizerHasAreMissed) {
  EXPECT_THAT(doubts_about_settings(catalog_), IsEmpty());
  catalog_.groups[0].erase("lr");
  EXPECT_THAT(doubts_about_settings(catalog_), ElementsAre(HasSubstr("have no lr: 0")));
  catalog_.groups[0] = {{"lr", 0.1}, {"params", Json::array()}};
  EXPECT_THAT(doubts_about_settings(catalog_), ElementsAre(HasSubstr("list no parameter")));
  catalog_.groups = Json::array();
  EXPECT_THAT(doubts_about_settings(catalog_), ElementsAre(HasSubstr("no parameter groups")));
  for (const char* fqn : {"a", "b", "c"}) {
    drop(fqn, "exp_avg");
    drop(fqn, "exp_avg_sq");
  }
  EXPECT_THAT(doubts_about_settings(catalog_), IsEmpty());
}

TEST_F(StateDoubts, FactoredMomentsHaveShapesOfTheirOwn) {
  for (const char* fqn : {"a", "b", "c"}) {
    tensor(fqn, "exp_avg_sq").shape = {6};
    tensor(fqn, "exp_avg_sq").state = "exp_avg_sq_row";
  }
  EXPECT_THAT(doubts(), IsEmpty());
}

TEST_F(StateDoubts, AMomentThatTheOthersHaveIsMissed) {
  drop("b", "exp_avg_sq");
  EXPECT_THAT(doubts(),
              ElementsAre(testing::AllOf(HasSubstr("missing"), HasSubstr("b [exp_avg_sq]"))));
  tensor("b", "exp_avg").state = "momentum";
  EXPECT_THAT(doubts(), IsEmpty()) << "another kind of optimizer works on b";
}

TEST_F(StateDoubts, AMomentUnderAnotherNameIsMissed) {
  tensor("b", "exp_avg").state = "exp_avgx";
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("b [exp_avg]")));
  tensor("b", "exp_avg_sq").state = "momentum_buffer";  // another kind of optimizer
  EXPECT_THAT(doubts(), IsEmpty());
}

TEST_F(StateDoubts, TheSecondMomentUnderAnotherNameIsMissedToo) {
  tensor("b", "exp_avg_sq").state = "exp_avg_sqx";
  tensor("c", "exp_avg_sq").state = "exp_avg_sqx";
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("b [exp_avg_sq], c [exp_avg_sq]")));
  tensor("b", "exp_avg_sqx").shape = tensor("c", "exp_avg_sqx").shape = {6};
  EXPECT_THAT(doubts(), IsEmpty()) << "as a factored moment has it";
}

TEST_F(StateDoubts, AMomentOfAdamThatIsRenamedForAllParametersIsMissed) {
  for (const char* fqn : {"a", "b", "c"}) tensor(fqn, "exp_avg").state = "exp_avg_fast";
  catalog_.step = 3;
  EXPECT_THAT(doubts(), IsEmpty()) << "other optimizers have such names";
  catalog_.groups[0].update({{"betas", {0.9, 0.99}}, {"eps", 1e-8}, {"amsgrad", false}});
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("group 0 has \"exp_avg_fast\" instead of exp_avg")));
}

TEST_F(StateDoubts, EachParameterOfAdamHasBothMoments) {
  drop("b", "exp_avg_sq");
  drop("c", "exp_avg_sq");
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("b [exp_avg_sq], c [exp_avg_sq]")));
  drop("a", "exp_avg_sq");
  EXPECT_THAT(doubts(), IsEmpty()) << "as Lion has it";
}

TEST_F(StateDoubts, AdamHasBothMomentsOfSomeParameter) {
  catalog_.groups[0].update({{"betas", {0.9, 0.99}}, {"eps", 1e-8}, {"amsgrad", false}});
  catalog_.step = 3;
  EXPECT_THAT(doubts(), IsEmpty());
  for (const char* fqn : {"a", "b", "c"}) drop(fqn, "exp_avg_sq");
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("group 0 has exp_avg alone")));
  catalog_.groups[0].erase("eps");
  EXPECT_THAT(doubts(), IsEmpty()) << "Lion of DeepSpeed, which gets amsgrad when it resumes";
}

TEST_F(StateDoubts, AdamHasStatesAfterAStep) {
  catalog_.groups[0].update({{"betas", {0.9, 0.99}}, {"eps", 1e-8}, {"amsgrad", false}});
  for (const char* fqn : {"a", "b", "c"}) {
    drop(fqn, "exp_avg_sq");
    drop(fqn, "exp_avg");
  }
  EXPECT_THAT(doubts(), IsEmpty());
  catalog_.step = 3;
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("no states of any parameter, and the checkpoint "
                                              "counts 3 steps")));
  catalog_.data_position = {{"skipped_steps", 3}};
  EXPECT_THAT(doubts(), IsEmpty()) << "each step was skipped";
  catalog_.data_position = nullptr;
  losses_.push_back({.role = Role::Optimizer, .name = "optimizer.pt"});
  EXPECT_THAT(doubts(), IsEmpty());
}

TEST_F(StateDoubts, EightBitMomentsHaveTheirTables) {
  const std::string object = "__bnb_optimizer_quant_state__--";
  for (const char* fqn : {"a", "b"}) {
    tensor(fqn, "exp_avg").dtype = DType::UInt8;
    tensor(fqn, "exp_avg").state = object + "state1";
    tensor(fqn, "exp_avg_sq").state = object + "absmax1";
    TensorInfo table = tensor(fqn, object + "absmax1");
    table.state = object + "qmap1";
    catalog_.tensors.push_back(std::move(table));
  }
  EXPECT_THAT(doubts(), IsEmpty());
  drop("b", object + "absmax1");
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("these tables: b [absmax1]")));
  tensor("b", object + "state1").dtype = DType::Float32;
  EXPECT_THAT(doubts(), IsEmpty()) << "a small parameter";
}

TEST_F(StateDoubts, AParameterWithoutAStateIsNotTrainedYet) {
  drop("b", "exp_avg_sq");
  drop("b", "exp_avg");
  EXPECT_THAT(doubts(), IsEmpty());
}

TEST_F(StateDoubts, AStepThatTheOthersHaveIsMissed) {
  steps()["c"] = nullptr;
  EXPECT_THAT(doubts(), ElementsAre(testing::AllOf(HasSubstr("no step"), HasSubstr(": c"))));
  steps() = {{"a", nullptr}, {"b", nullptr}, {"c", nullptr}};
  EXPECT_THAT(doubts(), IsEmpty()) << "none of them counts";
}

TEST_F(StateDoubts, NamesOfGroupsAreHeldAgainstTheParameters) {
  params() = {"a", "a", "nope"};
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("twice in one: a"),
                                    HasSubstr("neither a weight nor a state "
                                              "here: nope"),
                                    HasSubstr("in none of its groups: b, c")));
}

TEST_F(StateDoubts, StepsThatDeepSpeedSkippedAreStepsOfTheTrainer) {
  EXPECT_THAT(doubts_about_steps(catalog_, 4, {}, false), ElementsAre(HasSubstr("optimizer 3")));
  catalog_.data_position = {{"skipped_steps", 1}};
  EXPECT_THAT(doubts_about_steps(catalog_, 4, {}, false), IsEmpty());
  EXPECT_THAT(doubts_about_steps(catalog_, 5, {}, false), ElementsAre(HasSubstr("optimizer 3")));
}

TEST_F(StateDoubts, StepsOfTheTrainerAreHeldAgainstTheOthers) {
  EXPECT_THAT(doubts_about_steps(catalog_, 3, 3, false), IsEmpty());
  EXPECT_THAT(doubts_about_steps(catalog_, 3, 9, false),
              ElementsAre(HasSubstr("the folder's name 9")));
  catalog_.scheduler = {{"last_epoch", 6}, {"_step_count", 7}};
  EXPECT_THAT(doubts_about_steps(catalog_, 3, {}, false), IsEmpty()) << "of two processes";
  EXPECT_THAT(doubts_about_steps(catalog_, 3, {}, true),
              ElementsAre(HasSubstr("and the schedule 6")));
  catalog_.scheduler["last_epoch"] = 3;
  EXPECT_THAT(doubts_about_steps(catalog_, 3, {}, true), IsEmpty());
  catalog_.scheduler["last_epoch"] = 4;
  EXPECT_THAT(doubts_about_steps(catalog_, 3, {}, false),
              ElementsAre(HasSubstr("and the schedule 4")));
  catalog_.scheduler["num_bad_epochs"] = 0;
  steps()["b"] = 12;
  EXPECT_THAT(doubts_about_steps(catalog_, 3, {}, false),
              ElementsAre(HasSubstr("and the optimizer 12")));
}

/// What DeepSpeed 0.19 writes after three steps of a run in bf16 or fp16 without ZeRO.
TEST_F(StateDoubts, TheStepWithWhichDeepSpeedBeginsIsNone) {
  catalog_.tensors.push_back(catalog_.tensors.front());
  catalog_.tensors.back().state = state::kWeights;
  catalog_.tensors.back().dtype = DType::BFloat16;
  EXPECT_THAT(doubts_about_steps(catalog_, 2, {}, false),
              ElementsAre(HasSubstr("and the optimizer 3")));
  catalog_.producer = {{"library", "deepspeed"}, {"version", "0.19.8"}};
  EXPECT_THAT(doubts_about_steps(catalog_, 2, {}, false), IsEmpty());
  EXPECT_THAT(doubts_about_steps(catalog_, 1, {}, false),
              ElementsAre(HasSubstr("and the optimizer 3")));
  catalog_.tensors.pop_back();
  EXPECT_FALSE(counts_the_start(catalog_)) << "a run in fp32";
  catalog_.config = {{"bf16", {{"enabled", true}}}};
  EXPECT_TRUE(counts_the_start(catalog_)) << "the copies in 16 bits are not here";
  catalog_.stage = 1;
  EXPECT_THAT(doubts_about_steps(catalog_, 2, {}, false),
              ElementsAre(HasSubstr("and the optimizer 3")));
  catalog_.producer["version"] = "0.13.1";
  EXPECT_TRUE(counts_the_start(catalog_));
}

TEST_F(StateDoubts, NumbersWithoutAStateMayBeFrozen) {
  TensorInfo frozen;
  frozen.fqn = "d";
  frozen.state = state::kWeights;
  frozen.shape = {2};
  catalog_.tensors.push_back(std::move(frozen));
  params().push_back("state.7");
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("as of frozen and unused parameters: state.7")));
}

TEST_F(StateDoubts, MoreNumbersInGroupsThanParametersAreCounted) {
  for (const char* fqn : {"a", "b", "c"}) {
    drop(fqn, "exp_avg");
    drop(fqn, "exp_avg_sq");
  }
  steps() = Json::object();
  params() = {"state.0", "state.1", "state.2"};
  EXPECT_THAT(doubts(), IsEmpty()) << "SGD keeps no states";
  drop("b", "fp32");
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("list 3 parameters, and the model has 2 tensors")));
  params() = {"state.0", "state.1"};
  EXPECT_THAT(doubts(), IsEmpty());
  params() = {"state.0", "state.1", "state.2"};
  catalog_.producer = {{"guessed_ties", {"d"}}};
  EXPECT_THAT(doubts(), IsEmpty()) << "a second name may be a parameter of its own";
  catalog_.producer = Json::object();
  catalog_.tensors.clear();
  EXPECT_THAT(doubts(), IsEmpty()) << "an optimizer alone";
}

TEST_F(StateDoubts, ASecondNameIsAName) {
  catalog_.aliases = {{"tied", "a"}};
  params() = {"tied", "a", "b", "c"};
  EXPECT_THAT(doubts(), IsEmpty());
}

}  // namespace
}  // namespace unishard::converters
