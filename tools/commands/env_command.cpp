#include "unishard/converters/registry.hpp"
#include "unishard/format/json.hpp"
#include "unishard/format/version.hpp"

#include "commands/command.hpp"
#include "support/machine.hpp"
#include "views/terminal.hpp"

#include <fmt/format.h>

namespace unishard::cli {
namespace {

struct EnvRequest {
  bool json = false;
};

int run(const EnvRequest& options) {
  Json json = {{"unishard", kLibraryVersion},
               {"format_written", kFormatVersion},
               {"format_read_oldest", kOldestReadableVersion},
               {"hdf5", tools::hdf5_version()},
               {"compiler", __VERSION__},
               {"cpu", tools::cpu_name()},
               {"threads", tools::hardware_threads()}};
  std::string formats;
  for (const converters::FormatEntry& entry : converters::known_formats()) {
    json["formats"][std::string(entry.name)] = entry.description;
    formats += fmt::format("  {:<20} {}\n", entry.name, entry.description);
  }
  if (options.json) {
    print_json(json);
    return 0;
  }
  print(fmt::format(
      "unishard     {}\ncheckpoints  format {} written, {} to {} read\nHDF5         {}\ncompiler   "
      "  {}\n"
      "CPU          {}, {} threads\nformats, read and written\n{}",
      kLibraryVersion, kFormatVersion, kOldestReadableVersion, kFormatVersion,
      tools::hdf5_version(), __VERSION__, tools::cpu_name(), tools::hardware_threads(), formats));
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
