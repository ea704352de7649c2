#include "reading/model_doubts.hpp"

#include "expect.hpp"
#include "temp_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace unishard::converters {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ModelDoubts : public testing::Test {
 protected:
  void add(const char* fqn, Shape shape = {2, 3}) {
    TensorInfo tensor;
    tensor.fqn = fqn;
    tensor.state = state::kWeights;
    tensor.shape = std::move(shape);
    catalog_.tensors.push_back(std::move(tensor));
  }
  void write(const char* name, const Json& content) const {
    test::write_file(folder_.path() / name, content.dump());
  }
  std::vector<std::string> doubts() const {
    return doubts_about_model(posix_storage(), folder_.path(), catalog_);
  }

  const test::TempDir folder_;
  Catalog catalog_;
};

TEST_F(ModelDoubts, LayersThatTheConfigurationHasAreMissed) {
  for (const char* name : {"h.0.a", "h.0.b.1.w", "h.1.a", "wte"}) add(name);
  EXPECT_THAT(doubts(), IsEmpty());
  write("config.json", {{"n_layer", 2}});
  EXPECT_THAT(doubts(), IsEmpty());
  write("config.json", {{"n_layer", 3}});
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("3 layers, and there are tensors of 2 (\"h\")")));
  write("config.json", {{"num_hidden_layers", 3}, {"num_hidden_groups", 1}});
  EXPECT_THAT(doubts(), IsEmpty()) << "layers that share weights";
  test::write_file(folder_.path() / "config.json", "x");
  EXPECT_THAT(doubts(), IsEmpty()) << "damaged_files() names it";
  test::write_file(folder_.path() / "config.json", R"({"n_layer": 3, "limit": [0.0, Infinity]})");
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("3 layers")));
}

TEST_F(ModelDoubts, LayersThatAreRunThroughSeveralTimesCountOnce) {
  for (const char* name : {"H_module.layers.0.a.w", "H_module.layers.1.a.w",
                           "L_module.layers.0.a.w", "L_module.layers.1.a.w"})
    add(name);
  write("config.json", {{"num_hidden_layers", 16}, {"num_layers_per_stack", 2}});
  EXPECT_THAT(doubts(), IsEmpty());
  write("config.json", {{"num_hidden_layers", 24}, {"num_layers_per_stack", 3}});
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("3 layers, and there are tensors of 2")));
}

TEST_F(ModelDoubts, ATensorThatAllModelsOfTheTypeHaveIsMissed) {
  for (const char* name : {"model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
                           "model.layers.0.post_attention_layernorm.weight"})
    add(name);
  write("config.json", {{"model_type", "llama"}, {"architectures", {"LlamaModel"}}});
  EXPECT_THAT(doubts(), ElementsAre(AllOf(HasSubstr("every model of the type llama"),
                                          HasSubstr("\"model.norm.weight\""))));
  write("adapter_config.json", Json::object());
  EXPECT_THAT(doubts(), IsEmpty()) << "an adapter has less than its model";
}

TEST_F(ModelDoubts, OneOfTiedTensorsIsEnough) {
  for (const char* name : {"lm_head.weight", "model.norm.weight"}) add(name);
  write("config.json", {{"model_type", "llama"}, {"architectures", {"LlamaForCausalLM"}}});
  EXPECT_THAT(doubts(), IsEmpty());
  catalog_.tensors[0].fqn = "score.weight";
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("\"model.embed_tokens.weight\"")));
}

TEST_F(ModelDoubts, AModelOfOtherNamesIsNotLookedAt) {
  add("tok_embeddings.weight");
  write("config.json", {{"model_type", "llama"}, {"architectures", {"LlamaModel"}}});
  EXPECT_THAT(doubts(), IsEmpty());
}

TEST_F(ModelDoubts, AModelWithoutAnyLayerIsMissed) {
  for (const char* name : {"wte.weight", "norm.weight"}) add(name);
  write("config.json", {{"n_layer", 3}});
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("3 layers, and there are tensors of 0")));
}

TEST_F(ModelDoubts, ALayerThatLacksWhatTheOthersHaveIsNamed) {
  for (const char* name : {"h.0.m.a", "h.0.m.b", "h.1.m.a", "h.2.m.a", "h.2.m.b", "h.3.m.a"})
    add(name);
  for (const char* name : {"h.3.m.b", "h.4.m.a", "h.4.m.b"}) add(name);
  for (const char* name : {"h.1.norm.a", "h.2.norm.a", "h.3.norm.a"}) add(name);
  EXPECT_THAT(doubts(), IsEmpty()) << "nothing says that these are layers of a model";
  write("config.json", {{"n_layer", 5}});
  EXPECT_THAT(doubts(),
              ElementsAre(HasSubstr("layers lack tensors that most layers have: h.1.m.b")));
  add("h.1.mamba.a");
  EXPECT_THAT(doubts(), IsEmpty()) << "a layer of another kind";
}

TEST_F(ModelDoubts, TheLastLayerMayLackNoMoreThanItsNorm) {
  for (const char* name : {"h.0.m.a", "h.0.m.b", "h.1.m.a", "h.1.m.b", "h.2.m.a"}) add(name);
  write("config.json", {{"n_layer", 3}});
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("most layers have: h.2.m.b")));
}

TEST_F(ModelDoubts, LayersOfEachPartOfAModelAreCounted) {
  for (const char* name : {"encoder.l.0.m.a", "encoder.l.1.m.a", "decoder.l.0.m.a"}) add(name);
  Json config = {{"encoder_layers", 2}, {"decoder_layers", 2}, {"is_encoder_decoder", true}};
  write("config.json", config);
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("2 layers, and there are tensors of 1")));
  config["is_encoder_decoder"] = false;
  write("config.json", config);
  EXPECT_THAT(doubts(), IsEmpty()) << "a decoder alone";
  write("config.json", {{"text_config", {{"num_hidden_layers", 2}}},
                        {"vision_config", {{"num_hidden_layers", 3}}}});
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("3 layers, and there are tensors of 2")));
}

TEST_F(ModelDoubts, OnePartOfAModelOfSeveralIsWhole) {
  for (const char* name : {"vision_model.layers.0.a", "vision_model.layers.1.a"}) add(name);
  Json config = {{"text_config", {{"num_hidden_layers", 3}}},
                 {"vision_config", {{"num_hidden_layers", 2}}},
                 {"architectures", {"CLIPModel"}}};
  write("config.json", config);
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("3 layers, and there are tensors of 2")));
  for (const char* part : {"CLIPForImageClassification", "CLIPVisionModel"}) {
    config["architectures"] = {part};
    write("config.json", config);
    EXPECT_THAT(doubts(), IsEmpty()) << part;
  }
  write("config.json",
        {{"num_hidden_layers", 3}, {"architectures", {"ViTForImageClassification"}}});
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("3 layers, and there are tensors of 2")));
}

TEST_F(ModelDoubts, LayersBeyondTheConfigurationAndGapsAreNamed) {
  for (const char* name : {"h.0.m.a", "h.1.m.a", "h.3.m.a", "s.0.a", "s.2.a"}) add(name);
  write("config.json", {{"n_layer", 2}});
  EXPECT_THAT(doubts(), IsEmpty()) << "s has two";
  write("config.json", {{"n_layer", 3}});
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("no layer h.2, and there is one with the number 3")));
  add("s.3.a");
  write("config.json", {{"n_layer", 2}});
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("2 layers, and there are tensors of 3")));
  write("config.json", {{"n_layer", 2}, {"num_nextn_predict_layers", 1}});
  EXPECT_THAT(doubts(), IsEmpty());
}

TEST_F(ModelDoubts, OneLayerOfAnotherShapeIsNamed) {
  for (const char* name : {"h.0.m.a", "h.1.m.a"}) add(name);
  add("h.2.m.a", {1, 3});
  write("config.json", {{"n_layer", 3}});
  EXPECT_THAT(doubts(), IsEmpty()) << "the last one";
  add("h.3.m.a");
  write("config.json", {{"n_layer", 4}});
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("another shape than all others: h.2.m.a")));
  write("config.json", {{"n_layer", 4}, {"layer_types", {"a", "a", "b", "a"}}});
  EXPECT_THAT(doubts(), IsEmpty());
  add("h.4.m.a", {1, 3});
  write("config.json", {{"n_layer", 5}});
  EXPECT_THAT(doubts(), IsEmpty()) << "layers of two kinds";
}

TEST_F(ModelDoubts, AnEndOfALanguageModelOfAnotherShapeIsNamed) {
  for (const char* name : {"h.1.attn.q.weight", "h.2.attn.q.weight", "h.3.attn.q.weight"})
    add(name);
  add("h.0.attn.q.weight", {1, 3});
  for (const char* name : {"h.0.norm.weight", "h.1.norm.weight", "h.2.norm.weight"}) add(name, {3});
  add("h.3.norm.weight", {2});
  Json config = {{"n_layer", 4}};
  write("config.json", config);
  EXPECT_THAT(doubts(), IsEmpty()) << "images and sound may have such layers";
  config["architectures"] = {"Qwen3ForCausalLM"};
  write("config.json", config);
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("than all others: h.0.attn.q.weight")));
  config["attn_heads"] = {1, 2, 2, 2};
  write("config.json", config);
  EXPECT_THAT(doubts(), IsEmpty()) << "each layer is described";
}

TEST_F(ModelDoubts, ACausalModelHasAMatrixForItsVocabulary) {
  Json config = {{"architectures", {"GPT2LMHeadModel"}}, {"vocab_size", 9}};
  add("ln");
  write("config.json", config);
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("9 tokens, and there is no matrix with so many")));
  add("wte", {10, 3});
  EXPECT_THAT(doubts(), IsEmpty()) << "rows are added up to a multiple";
  config["text_config"] = {{"tie_word_embeddings", false}};
  write("config.json", config);
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("\"wte\" is the only matrix with so many rows")));
  catalog_.aliases.push_back({.fqn = "head", .target = "wte"});
  EXPECT_THAT(doubts(), IsEmpty());
  catalog_.aliases.clear();
  config["quantization_config"] = Json::object();
  write("config.json", config);
  EXPECT_THAT(doubts(), IsEmpty());
}

TEST_F(ModelDoubts, ACausalModelHasAxesOfItsHiddenSize) {
  add("wte.weight", {9, 4});
  Json config = {{"architectures", {"GPTForCausalLM"}}, {"hidden_size", 4}};
  write("config.json", config);
  EXPECT_THAT(doubts(), IsEmpty());
  config["hidden_size"] = 8;
  write("config.json", config);
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("hidden_size of 8, and no tensor has an axis")));
  config["quantization_config"] = Json::object();
  write("config.json", config);
  EXPECT_THAT(doubts(), IsEmpty());
}

TEST_F(ModelDoubts, TheTotalSizeOfAnIndexIsCompared) {
  add("a");
  const char* name = "model.safetensors.index.json";
  write(name, {{"metadata", {{"total_size", 24}}}});
  EXPECT_THAT(doubts(), IsEmpty());
  write(name, {{"metadata", {{"total_size", 12}}}});
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("12 bytes, and they have 24")));
}

TEST_F(ModelDoubts, AMatrixOfAnAdapterThatIsAloneIsNamed) {
  for (const char* name : {"m.lora_A.weight", "n.lora_A.weight"}) add(name);
  add("m.lora_B.weight", {3, 2});
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("lack the one that belongs to them: n.lora_A")));
}

TEST_F(ModelDoubts, MatricesOfAnAdapterHaveTheRankOfItsConfiguration) {
  add("q.lora_A.weight", {2, 6});
  add("q.lora_B.weight", {6, 2});
  Json config = {{"peft_type", "LORA"}, {"r", 2}, {"target_modules", {"q"}}};
  write("adapter_config.json", config);
  EXPECT_THAT(doubts(), IsEmpty());
  config["r"] = 1;
  write("adapter_config.json", config);
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("(r, rank_pattern): q.lora_A.weight")));
  config["target_parameters"] = {"q.weight"};
  write("adapter_config.json", config);
  EXPECT_THAT(doubts(), IsEmpty()) << "two experts of rank 1";
  config["target_parameters"] = nullptr;
  config["rank_pattern"] = {{"q", 2}};
  write("adapter_config.json", config);
  EXPECT_THAT(doubts(), IsEmpty());
  config["peft_type"] = "ADALORA";
  config["rank_pattern"] = Json::object();
  write("adapter_config.json", config);
  EXPECT_THAT(doubts(), IsEmpty()) << "ranks that change while it trains";
}

TEST_F(ModelDoubts, MatricesOfAnAdapterFitEachOtherAndItsConfiguration) {
  const auto add_pair = [&](const std::string& module, std::uint64_t rank) {
    add((module + ".lora_A.weight").c_str(), {rank, 6});
    add((module + ".lora_B.weight").c_str(), {5, rank});
  };
  for (const char* module : {"l.0.q", "l.1.q", "l.2.q"}) add_pair(module, 2);
  Json config = {{"target_modules", {"q"}}, {"modules_to_save", nullptr}};
  write("adapter_config.json", config);
  EXPECT_THAT(doubts(), IsEmpty());
  config["target_modules"] = {"q", "v"};
  config["modules_to_save"] = {"head"};
  write("adapter_config.json", config);
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("no tensor: v, head")));
  add("classifier.weight");
  write("adapter_config.json", {{"modules_to_save", {"classifier", "score"}}});
  EXPECT_THAT(doubts(), IsEmpty()) << "PEFT lists both";
  write("adapter_config.json", {{"target_modules", {"q"}}});
  add_pair("l.4.q", 2);
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("no layer l.3")));
  write("adapter_config.json", {{"target_modules", {"q"}}, {"layers_to_transform", {0, 1, 2, 4}}});
  EXPECT_THAT(doubts(), IsEmpty());
  catalog_.tensors[1].shape = {5, 3};
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("another rank")));
}

TEST_F(ModelDoubts, EachModuleThatWasSavedWholeIsMissed) {
  add("m.embed_tokens.weight");
  Json config = {{"modules_to_save", {"lm_head", "tokens"}}};
  write("adapter_config.json", config);
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("no tensor: lm_head")));
  config["ensure_weight_tying"] = true;
  write("adapter_config.json", config);
  EXPECT_THAT(doubts(), IsEmpty()) << "one stands for both";
  write("adapter_config.json", {{"modules_to_save", {"classifier", "score", "tokens"}}});
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("no tensor: classifier, score")));
}

TEST_F(ModelDoubts, ABiasOfASavedModuleHasAWeight) {
  add("m.classifier.bias");
  write("adapter_config.json", {{"modules_to_save", {"classifier", "score"}}});
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("a bias and no weight: m.classifier.bias")));
  write("adapter_config.json", {{"bias", "all"}});
  EXPECT_THAT(doubts(), IsEmpty());
  add("m.classifier.weight");
  write("adapter_config.json", {{"modules_to_save", {"classifier", "score"}}});
  EXPECT_THAT(doubts(), IsEmpty());
}

TEST_F(ModelDoubts, TrainedTokensAreMissed) {
  add("m.layers.0.q.weight");
  write("adapter_config.json", {{"trainable_token_indices", {1, 2}}});
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("embeddings (trainable_token_indices)")));
  add("m.embed_tokens.token_adapter.trainable_tokens_delta");
  EXPECT_THAT(doubts(), IsEmpty());
  Json tokens = {{"embed_tokens", {1, 2}}, {"lm_head", {1, 2}}};
  write("adapter_config.json", {{"trainable_token_indices", tokens}});
  EXPECT_THAT(doubts(), IsEmpty()) << "the output is tied";
  tokens["lm_head"] = {3};
  write("adapter_config.json", {{"trainable_token_indices", tokens}});
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("lm_head (trainable_token_indices)")));
}

TEST_F(ModelDoubts, SharedProjectionsThatWereSavedAreMissed) {
  add("base_model.vera_B");
  write("adapter_config.json", {{"peft_type", "VERA"}, {"save_projection", true}});
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("there is no vera_A")));
  write("adapter_config.json", {{"peft_type", "VERA"}, {"save_projection", false}});
  EXPECT_THAT(doubts(), IsEmpty());
  write("adapter_config.json", {{"peft_type", "RANDLORA"}, {"save_projection", true}});
  EXPECT_THAT(doubts(), ElementsAre(HasSubstr("there is no randlora_A, randlora_B")));
}

}  // namespace
}  // namespace unishard::converters
