// Not a test itself: what our language models compute with a checkpoint of any format.
//
//   model_logits CONFIG CHECKPOINT STAGE TOKENS LOGITS
//
// CONFIG is a config.json of transformers, TOKENS text: one sequence of token ids a line, all of
// one length. LOGITS gets [sequence][position][token] as float32 in the machine's byte order. As
// several ranks under a launcher; rank 0 writes.
#include "unishard/format/error.hpp"
#include "unishard/trainer/causal_language_model.hpp"
#include "unishard/trainer/construction.hpp"
#include "unishard/trainer/engine.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace {

using namespace unishard;
using namespace unishard::trainer;

at::Tensor read_tokens(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::int64_t> all;
  std::int64_t lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    std::istringstream words(line);
    for (std::int64_t token = 0; words >> token;) all.push_back(token);
  }
  const auto count = static_cast<std::int64_t>(all.size());
  if (lines == 0 || count == 0 || count % lines != 0)
    raise(ErrorCode::InvalidArgument, path + ": not lines of equally many tokens");
  at::Tensor tokens = at::empty({lines, count / lines}, at::kLong);
  std::ranges::copy(all, tokens.data_ptr<std::int64_t>());
  return tokens;
}

Config config_for(std::uint32_t stage) {
  Config config;
  config.batch = {.train = 8, .micro = 1, .accumulation = {}};
  config.stage = stage;
  return config;
}

void run(char** argv, const RankEnvironment& environment) {
  const auto communicator = make_communicator(environment, {.timeout_seconds = 60});
  const ModelConfig shape = model_from_hugging_face(
      parse_json(read_text(posix_storage(), argv[1], 1u << 20), argv[1]), argv[1]);
  const Config config = config_for(static_cast<std::uint32_t>(std::atoi(argv[3])));
  std::shared_ptr<CausalLanguageModel> model;
  {
    const ConstructionScope scope(placement_for(config, *communicator));
    model = make_language_model(shape);
  }
  EngineOptions options;
  options.foreign_names = model_foreign_names(shape);
  Engine engine(model, *communicator, config, options);
  const LoadReport report = engine.load_checkpoint(argv[2]);
  const at::Tensor tokens = read_tokens(argv[4]);
  at::Tensor logits;
  engine.evaluate(
      [&](const MicroBatch&) {
        logits = model->forward(tokens);
        return logits.mean();
      },
      environment.world_size);  // one for each rank
  if (environment.rank == 0) {
    for (const std::string& note : report.notes) fmt::print("note: {}\n", note);
    logits = logits.to(at::kFloat).contiguous();
    std::ofstream file(argv[5], std::ios::binary);
    file.write(static_cast<const char*>(logits.data_ptr()), logits.numel() * 4);
    if (!file) raise(ErrorCode::Io, std::string("cannot write ") + argv[5]);
  }
  communicator->barrier();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    fmt::print(stderr, "usage: model_logits CONFIG CHECKPOINT STAGE TOKENS LOGITS\n");
    return 2;
  }
  at::set_num_threads(1);
  try {
    const RankEnvironment environment = read_rank_environment([](const std::string& name) {
      const char* value = std::getenv(name.c_str());
      return value ? std::optional<std::string>(value) : std::nullopt;
    });
    run(argv, environment);
  } catch (const std::exception& error) {
    fmt::print(stderr, "model_logits: {}\n", error.what());
    return 1;
  }
  return 0;
}
