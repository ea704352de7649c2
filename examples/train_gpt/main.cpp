// train_gpt: a GPT on bytes of a text, sharded over any number of ranks, saved and resumed on any
// other number.
#include "unishard/format/error.hpp"

#include "console.hpp"
#include "options.hpp"
#include "process.hpp"
#include "training.hpp"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>

namespace {

using namespace unishard;
using namespace unishard::trainer;

std::optional<std::string> lookup(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

/// For tests of crash safety: UNISHARD_KILL_AT="save=2,step=4,rank=0" kills that rank just before
/// that step (CommitStep) of that save.
train_gpt::SaveProbe kill_probe(std::uint32_t rank) {
  std::map<std::string, int, std::less<>> wanted;
  const std::string text = lookup("UNISHARD_KILL_AT").value_or("");
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const std::size_t equals = item.find('=');
    if (equals != std::string::npos)
      wanted[item.substr(0, equals)] = std::atoi(item.c_str() + equals + 1);
    begin = end + 1;
  }
  if (wanted.empty() || wanted["rank"] != static_cast<int>(rank)) return [](int, CommitStep) {};
  return [save = wanted["save"], step = wanted["step"]](int current, CommitStep reached) {
    if (current == save && static_cast<int>(reached) == step) std::raise(SIGKILL);
  };
}

void run(const train_gpt::Options& options, const RankEnvironment& environment) {
  const auto communicator = make_communicator(
      environment, {.backend = options.backend, .timeout_seconds = options.timeout_seconds});
  train_gpt::train(options, environment, *communicator, kill_probe(environment.rank));
  communicator->barrier();  // rank 0 serves the store: it leaves last
}

}  // namespace

int main(int argc, char** argv) {
  train_gpt::prepare_process();
  RankEnvironment environment;
  int status = 0;
  try {
    environment = read_rank_environment(lookup);
    const auto options = train_gpt::parse_options(argc, argv, status);
    if (options) {
      train_gpt::require_threads(options->threads);
      at::set_num_threads(options->threads);
      run(*options, environment);
    }
  } catch (...) {
    return train_gpt::report_exception(environment.rank);
  }
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  train_gpt::say_error(environment.rank, "error",
                       "standard output could not be written; everything else was done");
  return exit_status(ErrorCode::Io);
}
