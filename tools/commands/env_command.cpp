#include "unishard/converters/registry.hpp"
#include "unishard/format/json.hpp"
#include "unishard/format/text.hpp"
#include "unishard/format/version.hpp"

#include "commands/command.hpp"
#include "support/build_info.hpp"
#include "support/gpus.hpp"
#include "support/machine.hpp"
#include "support/size_text.hpp"
#include "views/terminal.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

namespace unishard::cli {
namespace {

struct EnvRequest {
  bool json = false;
};

/// Processes of NCCL and of data loaders share memory there.
constexpr const char* kSharedMemory = "/dev/shm";

std::uint64_t shared_memory_bytes() {
  std::error_code code;
  const auto space = std::filesystem::space(kSharedMemory, code);
  return code ? 0 : space.capacity;
}

Json describe() {
  const tools::BuildInfo build = tools::build_info();
  const auto or_null = [](std::string_view text) {
    return text.empty() ? Json(nullptr) : Json(std::string(text));
  };
  Json json = {{"unishard", kLibraryVersion},
               {"format_written", kFormatVersion},
               {"format_read_oldest", kOldestReadableVersion},
               {"hdf5", tools::hdf5_version()},
               {"compiler", __VERSION__},
               {"trainer",
                {{"libtorch", or_null(build.libtorch)},
                 {"cuda", or_null(build.cuda)},
                 {"nccl", build.has_nccl}}},
               {"cpu", tools::cpu_name()},
               {"threads", tools::hardware_threads()},
               {"available_memory_bytes", tools::available_memory()},
               {"shared_memory_bytes", shared_memory_bytes()},
               {"gpus", Json::array()},
               {"gpu_files", tools::gpu_numbers()},
               {"gpu_driver", or_null(tools::gpu_driver())}};
  for (const std::string& model : tools::gpu_models()) json["gpus"].push_back(printable(model));
  for (const converters::FormatEntry& entry : converters::known_formats())
    json["formats"][std::string(entry.name)] = entry.description;
  return json;
}

std::string trainer_text() {
  const tools::BuildInfo build = tools::build_info();
  if (build.libtorch.empty()) return "not built";
  return fmt::format("LibTorch {}, {}, {}", build.libtorch,
                     build.cuda.empty() ? "no CUDA kernels" : fmt::format("CUDA {}", build.cuda),
                     build.has_nccl ? "NCCL" : "no NCCL");
}

std::string gpu_text() {
  std::string models;
  for (const std::string& model : tools::gpu_models())
    models += fmt::format("{}{}", models.empty() ? "" : ", ", printable(model));
  if (models.empty()) return "none";
  const std::string driver = tools::gpu_driver();
  return fmt::format("{} (driver {}; {} can be used here)", models,
                     driver.empty() ? "unknown" : driver, tools::gpu_numbers().size());
}

std::string shared_memory_text() {
  constexpr std::uint64_t kUsuallyEnough = std::uint64_t{512} << 20;
  const std::uint64_t bytes = shared_memory_bytes();
  return fmt::format("{} in {}{}", tools::format_bytes(bytes), kSharedMemory,
                     bytes >= kUsuallyEnough
                         ? ""
                         : ", which may be too little for NCCL (docker run --shm-size=1gb)");
}

int run(const EnvRequest& options) {
  if (options.json) {
    print_json(describe());
    return 0;
  }
  print(
      fmt::format("unishard     {}\n"
                  "checkpoints  format {} written, {} to {} read\n"
                  "HDF5         {}\n"
                  "compiler     {}\n"
                  "trainer      {}\n"
                  "CPU          {}, {} threads\n"
                  "memory       {} available; shared: {}\n"
                  "GPUs         {}\n"
                  "formats      `unishard formats` lists them\n",
                  kLibraryVersion, kFormatVersion, kOldestReadableVersion, kFormatVersion,
                  tools::hdf5_version(), __VERSION__, trainer_text(), tools::cpu_name(),
                  tools::hardware_threads(), tools::format_bytes(tools::available_memory()),
                  shared_memory_text(), gpu_text()));
  return 0;
}

}  // namespace

void add_env(CLI::App& app, Action& action) {
  const auto options = std::make_shared<EnvRequest>();
  CLI::App* command =
      add_verb(app, action, "env", "Versions, formats and machine, for bug reports", options, run);
  command->add_flag("--json", options->json, "As JSON");
}

}  // namespace unishard::cli
