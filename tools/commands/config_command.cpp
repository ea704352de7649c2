#include "unishard/format/error.hpp"
#include "unishard/format/storage.hpp"
#include "unishard/format/text.hpp"
#include "unishard/trainer/config_keys.hpp"

#include "commands/command.hpp"
#include "views/table.hpp"
#include "views/terminal.hpp"

#include <fmt/format.h>

namespace unishard::cli {
namespace {

struct ConfigRequest {
  std::string file;
  std::string explain;
  bool schema = false, keys = false, page = false, json = false;
  std::optional<std::int64_t> hidden_size;
  std::int64_t steps = 100;  ///< train_gpt's default
};

void print_keys() {
  std::string text;
  for (const trainer::ConfigKey& key : trainer::config_keys()) text += path_of(key) + "\n";
  print(text);
}

/// Prints what a run with this file would use.
void print_values(const ConfigRequest& options) {
  const trainer::Config config = trainer::parse_config(
      trainer::read_config_file(options.file),
      {.flags = {}, .hidden_size = options.hidden_size, .steps = options.steps});
  const auto values = config_values(config);
  if (options.json) {
    Json json = {{"values", Json::object()}, {"notes", config.notes}};
    for (const trainer::ConfigValue& value : values)
      json["values"][value.path] = {{"value", value.value}, {"from", value.from}};
    return print_json(json);
  }
  Table table({{"key"}, {"value"}, {"from"}});
  for (const trainer::ConfigValue& value : values)
    table.add({value.path, printable(value.value.dump()), value.from});
  std::string out = table.text();
  for (const std::string& note : config.notes) out += fmt::format("note: {}\n", printable(note));
  print(out);
}

int run(const ConfigRequest& options) {
  const int asked = (options.file.empty() ? 0 : 1) + (options.explain.empty() ? 0 : 1) +
                    (options.schema ? 1 : 0) + (options.keys ? 1 : 0) + (options.page ? 1 : 0);
  if (asked != 1) {
    raise(ErrorCode::InvalidArgument,
          "one of FILE, --explain KEY, --keys, --schema and --page is needed");
  }
  if (options.schema) {
    print_json(trainer::config_schema());
  } else if (options.keys) {
    print_keys();
  } else if (options.page) {
    print(trainer::config_page());
  } else if (!options.explain.empty()) {
    print(trainer::explain_config_key(options.explain));
  } else {
    print_values(options);
  }
  return 0;
}

}  // namespace

void add_config(CLI::App& app, Action& action) {
  const auto options = std::make_shared<ConfigRequest>();
  CLI::App* command = add_verb(app, action, "config",
                               "Explain or check a configuration of DeepSpeed", options, run);
  command->add_option("file", options->file,
                      "A configuration: prints every value that a run would use, where it comes "
                      "from, and why the file is refused, if it is");
  command->add_option("--explain", options->explain,
                      "What a key or a section means, which values it takes, and its default");
  command->add_flag("--keys", options->keys, "Every key, a line each");
  command->add_flag("--schema", options->schema, "A JSON Schema, for editors");
  command->add_flag("--page", options->page, "The table as a page (trainer/CONFIG.md)");
  command->add_flag("--json", options->json, "The values of FILE as JSON");
  command
      ->add_option("--hidden-size", options->hidden_size,
                   "The model's hidden size, for \"auto\" sizes of buckets")
      ->check(CLI::Range(1, 1 << 24));
  command
      ->add_option("--steps", options->steps, "Steps of the run, for an \"auto\" total_num_steps")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 53))
      ->capture_default_str();
}

}  // namespace unishard::cli
