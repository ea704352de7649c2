#include "unishard/converters/registry.hpp"

#include "commands/command.hpp"
#include "views/table.hpp"
#include "views/terminal.hpp"

namespace unishard::cli {
namespace {

struct FormatsRequest {
  bool rules_schema = false;
};

int run(const FormatsRequest& options) {
  if (options.rules_schema) {
    print_json(tools::rules_schema());
    return 0;
  }
  Table table({{"format"}, {"what it is"}});
  for (const converters::FormatEntry& entry : converters::known_formats())
    table.add({std::string(entry.name), std::string(entry.description)});
  print(table.text());
  return 0;
}

}  // namespace

void add_formats(CLI::App& app, Action& action) {
  const auto options = std::make_shared<FormatsRequest>();
  CLI::App* command =
      add_verb(app, action, "formats", "The formats that are read and written", options, run);
  command->add_flag("--rules-schema,--rules_schema", options->rules_schema,
                    "Print a JSON Schema of files of rules (--rules, --save-rules) instead");
}

}  // namespace unishard::cli
