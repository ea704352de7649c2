// Models that tensor parallelism and pipelines cut, put together by the names of their tensors:
// Meta's Llama, Mistral (transformers' own script made what is expected), and a GPT and a Llama of
// Megatron-LM (megatron-core 0.16.1, whose sharded_state_dict() tells what is expected).
#include "formats/named_cuts.hpp"

#include "unishard/converters/llama_names.hpp"
#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"

#include "expect.hpp"
#include "fixtures.hpp"
#include "read_source.hpp"
#include "source_notes.hpp"
#include "temp_dir.hpp"
#include "torch_files.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace unishard::converters {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::Fails;
using testing::HasSubstr;
using testing::IsEmpty;

const Path kMeta = Path(UNISHARD_TEST_DATA) / "golden/meta";
const Path kMegatron = Path(UNISHARD_TEST_DATA) / "golden/megatron";

std::unique_ptr<Source> open(const Path& path) { return open_source(posix_storage(), path); }

/// Compares all tensors of a file of safetensors with those of the same names.
void expect_tensors(const Source& source, const Path& file) {
  const auto expected = open(file);
  EXPECT_EQ(source.catalog().tensors.size(), expected->catalog().tensors.size());
  for (std::size_t i = 0; i < expected->catalog().tensors.size(); ++i) {
    const TensorInfo& wanted = expected->catalog().tensors[i];
    const auto found = source.catalog().find(wanted.fqn, state::kWeights);
    ASSERT_TRUE(found) << wanted.fqn;
    EXPECT_EQ(source.catalog().tensors[*found].shape, wanted.shape) << wanted.fqn;
    EXPECT_EQ(read_all(source, *found), read_all(*expected, i)) << wanted.fqn;
  }
}

class CutByNames : public testing::Test {
 protected:
  Path copied(const Path& folder) const {
    const Path copy = temp_.path() / folder.filename();
    fs::copy(folder, copy, fs::copy_options::recursive);
    return copy;
  }
  const test::TempDir temp_;
};

TEST_F(CutByNames, FilesOfMetaAreOneModel) {
  for (const char* name : {"llama2", "llama3", "mistral"}) {
    const auto source = open(kMeta / name);
    const auto embedding = source->catalog().find("tok_embeddings.weight", state::kWeights);
    ASSERT_TRUE(embedding) << name;
    EXPECT_EQ(source->catalog().tensors[*embedding].shape, (Shape{6, 16})) << name;
    const auto output = source->catalog().find("layers.1.feed_forward.w2.weight", state::kWeights);
    ASSERT_TRUE(output) << name;
    EXPECT_EQ(source->catalog().tensors[*output].shape, (Shape{16, 24})) << name;
    EXPECT_FALSE(source->part_of());
    EXPECT_THAT(notes_of(*source), IsEmpty());
  }
}

TEST_F(CutByNames, RowsOfHeadsAreThoseOfTransformers) {
  const auto expected = open(kMeta / "llama2.safetensors");
  const auto source = in_order_of_transformers(open(kMeta / "llama2"), {.queries = 4, .keys = 2});
  EXPECT_FALSE(source->catalog().find("rope.freqs", state::kWeights));
  for (const auto& [meta, theirs] :
       {std::pair{"layers.1.attention.wq.weight", "model.layers.1.self_attn.q_proj.weight"},
        {"layers.1.attention.wk.weight", "model.layers.1.self_attn.k_proj.weight"},
        {"layers.0.attention.wv.weight", "model.layers.0.self_attn.v_proj.weight"}}) {
    const auto found = source->catalog().find(meta, state::kWeights);
    const auto wanted = expected->catalog().find(theirs, state::kWeights);
    ASSERT_TRUE(found && wanted);
    const auto all = read_all(*expected, *wanted);
    EXPECT_EQ(read_all(*source, *found), all) << meta;
    // Elements 5 to 40 begin and end within rows.
    std::vector<std::byte> some(35 * size_of(DType::BFloat16));
    source->read(*found, {5, 40}, some);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + 5 * 2)) << meta;
  }
  EXPECT_THAT(error_of([] { in_order_of_transformers(open(kMeta / "llama2"), {.queries = 3}); }),
              Fails(ErrorCode::Mismatch, {"attention.w", "heads"}));
  for (const char* params :
       {"{}", R"({"n_heads": 0})", R"({"n_heads": "4"})", R"({"n_heads": -1})"})
    EXPECT_THAT(error_of([&] { parse_attention_heads(params, "params.json"); }),
                Fails(ErrorCode::Corrupt, {"params.json"}))
        << params;
}

TEST_F(CutByNames, FilesOfMetaThatDoNotFitAreRefused) {
  struct Case {
    std::string params;
    ErrorCode code;
    std::string words;
  };
  const Case cases[] = {
      {R"({"dim": 32, "n_heads": 8, "n_kv_heads": 4})", ErrorCode::Corrupt, "tok_embeddings"},
      {R"({"dim": 16, "n_heads": 4, "n_kv_heads": 1})", ErrorCode::Unsupported, "same heads"},
      {R"({"dim": 16, "n_heads": 8, "head_dim": 4})", ErrorCode::Corrupt, "wq.weight"},
      {R"({"dim": 16, "n_heads": 2, "n_kv_heads": 1})", ErrorCode::Corrupt, "n_kv_heads is 1"},
      {R"({"dim": 16, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 8})", ErrorCode::Corrupt,
       "vocab_size is 8"},
      {R"({"n_heads": 4, "n_kv_heads": 2, "head_dim": 4})", ErrorCode::Unsupported, "no dim"},
      {R"({"dim": 16, "n_layers": 2})", ErrorCode::Unsupported, "no n_heads"},
      {R"([1])", ErrorCode::Corrupt, "no object"}};
  const Path folder = copied(kMeta / "llama2");
  for (const Case& c : cases) {
    test::write_file(folder / "params.json", c.params);
    EXPECT_THAT(error_of([&] { open(folder); }), Fails(c.code, {c.words})) << c.params;
  }
  fs::remove(folder / "params.json");
  EXPECT_THAT(error_of([&] { open(folder); }), Fails(ErrorCode::Unsupported, {"--merge-rules"}));
  const Path gap = copied(kMeta / "llama3");
  fs::rename(gap / "consolidated.01.pth", gap / "consolidated.02.pth");
  EXPECT_THAT(error_of([&] { open(gap); }), Fails(ErrorCode::Corrupt, {"number 1"}));
}

TEST_F(CutByNames, AMissingLastFileOfMetaIsNamed) {
  for (const char* name : {"llama2", "llama3"}) {
    const Path folder = copied(kMeta / name);
    fs::remove(folder / "consolidated.01.pth");
    const Error error = error_of([&] { open(folder); });
    EXPECT_THAT(error, Fails(ErrorCode::Corrupt, {"cut for 2 files", "consolidated.01.pth"}));
    EXPECT_THAT(error.hint(), HasSubstr("missing files"));
  }
}

TEST_F(CutByNames, StagesOfMegatronAreOneModel) {
  for (const char* name : {"gpt", "llama"}) {
    const auto source = open(kMegatron / name);
    expect_tensors(*source, kMegatron / fmt::format("{}.safetensors", name));
    EXPECT_EQ(source->catalog().world_size, 4u);
    EXPECT_EQ(source->catalog().client_state["iteration"], 3);  // by which saves are told apart
    EXPECT_FALSE(source->part_of());
    EXPECT_THAT(notes_of(*source), IsEmpty()) << name;
  }
  const auto tied = open(kMegatron / "gpt");
  ASSERT_EQ(tied->catalog().aliases.size(), 1u);
  EXPECT_EQ(tied->catalog().aliases[0].fqn, "output_layer.weight");
  EXPECT_EQ(tied->catalog().aliases[0].target, "embedding.word_embeddings.weight");
  EXPECT_THAT(open(kMegatron / "llama")->remarks(), testing::Contains(HasSubstr("padding")));
}

/// Stages of Megatron-Core 0.13 have their groups in different orders. The saving processes put
/// the expected tensors together themselves.
TEST_F(CutByNames, StatesOfMegatronHaveTheNamesOfTheirParameters) {
  for (const char* name : {"optimizer_bf16", "optimizer_fp32"}) {
    const auto source = open(kMegatron / name);
    const Catalog& catalog = source->catalog();
    const auto expected = open(kMegatron / fmt::format("{}.safetensors", name));
    EXPECT_EQ(catalog.tensors.size(), expected->catalog().tensors.size());
    for (std::size_t i = 0; i < expected->catalog().tensors.size(); ++i) {
      const std::string& label = expected->catalog().tensors[i].fqn;
      const std::size_t bar = label.find('|');
      const auto found = catalog.find(label.substr(0, bar), label.substr(bar + 1));
      ASSERT_TRUE(found) << label;
      EXPECT_EQ(catalog.tensors[*found].shape, expected->catalog().tensors[i].shape) << label;
      EXPECT_EQ(read_all(*source, *found), read_all(*expected, i)) << label;
    }
    EXPECT_EQ(catalog.step, 3);
    ASSERT_EQ(catalog.groups.size(), 2u);
    for (std::size_t g = 0; g < 2; ++g) {
      EXPECT_EQ(catalog.groups[g]["weight_decay"], g == 0 ? 0.1 : 0.0);
      EXPECT_EQ(catalog.groups[g]["params"].size(), 18u);
    }
    ASSERT_EQ(source->losses().size(), 1u);
    EXPECT_EQ(source->losses()[0].name, "rng_state");
    EXPECT_EQ(catalog.client_state["iteration"], 3);
    EXPECT_FALSE(catalog.client_state.contains("optimizer"));
  }
}

TEST_F(CutByNames, AMissingOrForeignStageOfMegatronIsNamed) {
  const Path run = copied(kMegatron / "gpt"), step = run / "iter_0000003";
  fs::rename(step / "mp_rank_01_001", temp_.path() / "gone");
  EXPECT_THAT(error_of([&] { open(run); }),
              Fails(ErrorCode::Corrupt, {"rank 1 of stage 1 is missing", "mp_rank_01_001"}));
  fs::rename(temp_.path() / "gone", step / "mp_rank_01_001");
  fs::copy(step / "mp_rank_01_001", step / "mp_rank_01_002");
  EXPECT_THAT(error_of([&] { open(run); }), Fails(ErrorCode::Corrupt, {"another save"}));
  fs::remove_all(step / "mp_rank_01_002");
  // The embedding of the last stage is another run's.
  const auto source = open(run);
  for (const char* rank : {"mp_rank_00_001", "mp_rank_01_001"}) {
    fs::remove(step / rank / "model_optim_rng.pt");
    fs::copy(kMegatron / "llama/iter_0000003" / rank / "model_optim_rng.pt",
             step / rank / "model_optim_rng.pt");
  }
  EXPECT_EQ(error_of([&] {
              const auto mixed = open(run);
              for (std::size_t i = 0; i < mixed->catalog().tensors.size(); ++i) read_all(*mixed, i);
            }).code(),
            ErrorCode::Corrupt);
}

TEST_F(CutByNames, ARankOfMegatronInTwoPlacesIsNoted) {
  const Path run = copied(kMegatron / "llama"), step = run / "iter_0000003";
  fs::copy_file(step / "mp_rank_00_000/model_optim_rng.pt",
                step / "mp_rank_01_000/model_optim_rng.pt", fs::copy_options::overwrite_existing);
  EXPECT_THAT(open(run)->notes(), testing::Contains(HasSubstr("may be another's under a wrong")));
}

TEST_F(CutByNames, ARunOfMegatronWithoutItsLatestListsItsIterations) {
  const Path run = copied(kMegatron / "gpt");
  fs::remove(run / "latest_checkpointed_iteration.txt");
  fs::copy(run / "iter_0000003", run / "iter_0000012", fs::copy_options::recursive);
  const Error error = error_of([&] { open(run); });
  EXPECT_THAT(error, Fails(ErrorCode::InvalidArgument, {"no latest_checkpointed_iteration.txt"}));
  EXPECT_THAT(error.hint(), HasSubstr("iter_0000003, iter_0000012"));
  EXPECT_NO_THROW(open(run / "iter_0000003"));
  EXPECT_NO_THROW(open_source(posix_storage(), run, "iter_0000012"));
}

TEST_F(CutByNames, RunsWithOtherArgumentsAreNotOneModel) {
  const Path run = copied(kMegatron / "gpt"), file = "mp_rank_01_001/model_optim_rng.pt";
  fs::copy_file(kMegatron / "llama/iter_0000003" / file, run / "iter_0000003" / file,
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(error_of([&] { open(run); }),
              Fails(ErrorCode::Corrupt, {"different arguments of the run", "mp_rank_01_001"}));
}

/// The file of tensor-parallel rank 0 or 1 of a Megatron-LM run of two, which process `rank` saved.
void save_megatron_part(const Path& folder, std::uint64_t rank) {
  const std::map<std::string, Shape> shapes = {
      {"embedding.word_embeddings.weight", {3, 4}},
      {"decoder.layers.0.input_layernorm.weight", {4}},
      {"decoder.layers.0.self_attention.linear_qkv.weight", {6, 4}},
      {"decoder.layers.0.self_attention.linear_proj.weight", {4, 2}},
      {"decoder.layers.0.pre_mlp_layernorm.weight", {4}},
      {"decoder.layers.0.mlp.linear_fc1.weight", {5, 4}},
      {"decoder.layers.0.mlp.linear_fc2.weight", {4, 5}},
      {"decoder.final_layernorm.weight", {4}}};
  const Json args = {{"tensor_model_parallel_size", 2},
                     {"num_layers", 1},
                     {"num_attention_heads", 2},
                     {"rank", rank},
                     {"world_size", 4}};
  Json names = {{"args", args}, {"checkpoint_version", 3.0}, {"iteration", 3}};
  std::map<std::string, Made> tensors;
  for (const auto& [name, shape] : shapes) {
    names["model"][name] = tensor(name);
    tensors[name] = {DType::Float32, shape, std::vector<float>(element_count(shape))};
  }
  fs::create_directories(folder);
  save_torch(folder / "model_optim_rng.pt", names, tensors, "model_optim_rng");
}

TEST_F(CutByNames, AFileOfMegatronInAnothersPlaceIsDamage) {
  const Path run = temp_.path() / "iter_0000003";
  const auto save = [&](std::uint64_t first, std::uint64_t second) {
    fs::remove_all(run);
    save_megatron_part(run / "mp_rank_00", first);
    save_megatron_part(run / "mp_rank_01", second);
  };
  save(0, 1);
  const auto source = open(run);
  const auto found = source->catalog().find("embedding.word_embeddings.weight", state::kWeights);
  ASSERT_TRUE(found);
  EXPECT_EQ(source->catalog().tensors[*found].shape, (Shape{6, 4}));
  save(1, 0);
  EXPECT_THAT(error_of([&] { open(run); }),
              Fails(ErrorCode::Corrupt, {"mp_rank_00", "rank 1 saved it", "another's place"}));
  save(0, 0);
  EXPECT_THAT(error_of([&] { open(run); }), Fails(ErrorCode::Corrupt, {"mp_rank_01"}));
}

TEST_F(CutByNames, ALayerThatTheModelDoesNotHaveIsDamage) {
  const Path model = copied(kMeta / "llama2");
  Json params = Json::parse(test::read_file(model / "params.json"));
  params["n_layers"] = 1;
  test::write_file(model / "params.json", params.dump());
  EXPECT_THAT(error_of([&] { open(model); }),
              Fails(ErrorCode::Corrupt, {"n_layers is 1", "layers.1."}));
}

/// A rank's part of a Llama of one layer, whose tensors have the shapes that `rows` says.
/// Those in `others` have other shapes.
void save_llama_part(const Path& file, std::uint64_t rows, bool has_norm = true,
                     std::uint64_t tokens = 3, const std::map<std::string, Shape>& others = {}) {
  const DType f32 = DType::Float32;
  Json names = Json::object();
  std::map<std::string, Made> tensors;
  const auto add = [&](const std::string& name, const Shape& usual) {
    const Shape shape = others.contains(name) ? others.at(name) : usual;
    names[name] = tensor(name);
    tensors[name] = {f32, shape, std::vector<float>(element_count(shape))};
  };
  for (const char* name : {"wq", "wk", "wv"})
    add(fmt::format("layers.0.attention.{}.weight", name), {2, 4});
  add("layers.0.attention.wo.weight", {4, 2});
  for (const char* name : {"w1", "w3"})
    add(fmt::format("layers.0.feed_forward.{}.weight", name), {rows, 4});
  add("layers.0.feed_forward.w2.weight", {4, 3});
  for (const char* name : {"attention_norm", "ffn_norm"})
    add(fmt::format("layers.0.{}.weight", name), {4});
  add("tok_embeddings.weight", {tokens, 4});
  if (has_norm) add("norm.weight", {4});
  add("output.weight", {3, 4});
  if (others.contains("rope.freqs")) add("rope.freqs", {});
  fs::remove(file);
  save_torch(file, names, tensors, file.stem());
}

TEST_F(CutByNames, AModelOfMetaIsWholeAndCutEvenly) {
  const Path folder = temp_.path() / "meta";
  fs::create_directories(folder);
  const std::string params = R"({"dim": 4, "n_heads": 2, "n_layers": 1})";
  const auto save = [&](std::uint64_t rows, bool has_norm, const std::string& text) {
    save_llama_part(folder / "consolidated.00.pth", 3, has_norm);
    save_llama_part(folder / "consolidated.01.pth", rows, has_norm);
    test::write_file(folder / "params.json", text);
  };
  save(3, true, params);
  EXPECT_NO_THROW(open(folder));
  save(2, true, params);
  EXPECT_THAT(error_of([&] { open(folder); }),
              Fails(ErrorCode::Corrupt, {"w1.weight", "different shapes", "(3, 4)", "(2, 4)"}));
  save(3, false, params);
  EXPECT_THAT(error_of([&] { open(folder); }),
              Fails(ErrorCode::Corrupt, {"1 tensors of the model", "norm.weight"}));
  save(3, true, R"({"dim": 4, "n_heads": 2, "n_layers": 2})");
  EXPECT_THAT(error_of([&] { open(folder); }), Fails(ErrorCode::Corrupt, {"layers.1."}));
}

TEST_F(CutByNames, TheEmbeddingAndTheOutputOfMetaHaveOneVocabulary) {
  const auto save = [&](std::uint64_t tokens) {
    for (const char* name : {"consolidated.00.pth", "consolidated.01.pth"})
      save_llama_part(temp_.path() / name, 3, true, tokens);
  };
  test::write_file(temp_.path() / "params.json",
                   R"({"dim": 4, "n_heads": 2, "n_layers": 1, "vocab_size": -1})");
  save(3);
  EXPECT_NO_THROW(open(temp_.path()));
  save(2);
  EXPECT_THAT(error_of([&] { open(temp_.path()); }),
              Fails(ErrorCode::Corrupt, {"4 rows in all, and output.weight 6"}));
}

TEST_F(CutByNames, AShapeThatAllFilesOfMetaHaveWrongIsDamage) {
  const auto save = [&](const std::map<std::string, Shape>& others, const char* more = "") {
    for (const char* name : {"consolidated.00.pth", "consolidated.01.pth"})
      save_llama_part(temp_.path() / name, 3, true, 3, others);
    test::write_file(temp_.path() / "params.json",
                     fmt::format(R"({{"dim": 4, "n_heads": 2, "n_layers": 1{}}})", more));
  };
  const std::string layer = "layers.0.";
  const std::pair<std::string, Shape> cases[] = {{"norm.weight", {3}},
                                                 {layer + "attention_norm.weight", {5}},
                                                 {layer + "ffn_norm.weight", {4, 1}},
                                                 {"output.weight", {3, 5}},
                                                 {layer + "attention.wk.weight", {2, 5}},
                                                 {layer + "attention.wo.weight", {5, 2}},
                                                 {layer + "attention.wo.weight", {4, 1}},
                                                 {layer + "feed_forward.w1.weight", {12}},
                                                 {layer + "feed_forward.w3.weight", {2, 4}},
                                                 {layer + "feed_forward.w2.weight", {4, 2}},
                                                 {"rope.freqs", {2}}};
  for (const auto& [name, shape] : cases) {
    save({{name, shape}});
    EXPECT_THAT(error_of([&] { open(temp_.path()); }), Fails(ErrorCode::Corrupt, {name})) << name;
  }
  save({{"rope.freqs", {1}}}, R"(, "hidden_dim": 6)");
  EXPECT_NO_THROW(open(temp_.path()));
  save({}, R"(, "hidden_dim": 8)");
  EXPECT_THAT(error_of([&] { open(temp_.path()); }),
              Fails(ErrorCode::Corrupt, {"6 rows in all, and by hidden_dim they are 8"}));
}

TEST_F(CutByNames, PartsThatDoNotTellEnoughAreRefusedInWords) {
  SKIP_WITHOUT_FIXTURES();
  const Path parts = test::fixtures() / "public/tensor_parallel_parts/input";
  EXPECT_THAT(error_of([&] { open(parts / "megatron"); }),
              Fails(ErrorCode::Unsupported, {"parallel", "2 parts", "num_layers"}));
  EXPECT_THAT(error_of([&] { open(parts / "meta"); }),
              Fails(ErrorCode::Unsupported, {"parallel", "2 parts", "n_heads"}));
}

TEST_F(CutByNames, ADamagedFileOfARankIsNamed) {
  const Path run = copied(kMegatron / "gpt"), model = copied(kMeta / "llama2");
  test::write_file(run / "iter_0000003/mp_rank_00_000/model_optim_rng.pt", "x");
  EXPECT_THAT(error_of([&] { open(run); }), Fails(ErrorCode::Corrupt, {"mp_rank_00_000"}));
  test::write_file(model / "params.json", "x");
  EXPECT_THAT(error_of([&] { open(model); }), Fails(ErrorCode::Corrupt, {"params.json"}));
}

TEST(NamedCuts, FindTheNumberOfALayer) {
  const auto found = parse_layer_name("decoder.layers.12.mlp.linear_fc1.weight");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->before, "decoder.layers.");
  EXPECT_EQ(found->layer, 12u);
  EXPECT_EQ(found->local, "mlp.linear_fc1.weight");
  for (const char* name : {"layers.x.w", "layers.1", "my_layers.1.w", "layers.01.w", "norm.weight",
                           "layers.99999999999.w", "layers.18446744073709551616.w"})
    EXPECT_FALSE(parse_layer_name(name)) << name;
}

}  // namespace
}  // namespace unishard::converters
