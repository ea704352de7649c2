#include "program.hpp"

#include "unishard/format/error.hpp"

#include "config_options.hpp"
#include "console.hpp"
#include "device.hpp"
#include "memory_advice.hpp"
#include "options.hpp"
#include "process.hpp"

#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>

namespace train_gpt {
namespace {

using namespace unishard;
using namespace unishard::trainer;

std::optional<std::string> lookup(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

void run(const Options& options, const RankEnvironment& environment, const SaveProbe& probe) {
  const auto communicator =
      make_communicator(environment, {.backend = backend_of(options),
                                      .timeout_seconds = options.timeout_seconds,
                                      .interface = lookup("GLOO_SOCKET_IFNAME").value_or("")});
  train(options, environment, *communicator, probe);
  communicator->barrier();  // rank 0 serves the store: it leaves last
}

}  // namespace

int run_program(int argc, char** argv, const SaveProbe& probe) {
  prepare_process();
  RankEnvironment environment;
  int status = 0;
  Hints hints;
  try {
    environment = read_rank_environment(lookup);
    const auto options = parse_options(argc, argv, status);
    if (options && options->prints_config) {
      if (environment.rank == 0) say(config_text(options->config, environment.world_size));
    } else if (options) {
      const RunSize size =
          run_size(*options, environment.world_size, options->device == DeviceChoice::Cpu);
      hints = {.memory = memory_advice(size), .files = files_advice(size)};
      require_threads(options->threads);
      at::set_num_threads(options->threads);
      prepare_products(options->threads);
      run(*options, environment, probe);
    }
  } catch (...) {
    return report_exception(environment.rank, hints);
  }
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  say_error(environment.rank, "error",
            "standard output could not be written; everything else was done");
  return exit_status(ErrorCode::Io);
}

}  // namespace train_gpt
