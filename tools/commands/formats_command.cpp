#include "unishard/converters/layouts.hpp"

#include "commands/command.hpp"
#include "views/terminal.hpp"

#include <fmt/format.h>

#include <string_view>

namespace unishard::cli {
namespace {

using converters::Layout;
using converters::RefusedLayout;

struct FormatsRequest {
  bool rules_schema = false;
  bool json = false;
};

Json list_of(std::string_view files) {
  constexpr std::string_view kComma = ", ";
  Json list = Json::array();
  while (!files.empty()) {
    const std::size_t end = files.find(kComma);
    list.push_back(files.substr(0, end));
    files.remove_prefix(end == files.npos ? files.size() : end + kComma.size());
  }
  return list;
}

Json formats_json() {
  Json json = {{"layouts", Json::array()}, {"refused", Json::array()}};
  const auto or_null = [](std::string_view text) {
    return text.empty() ? Json(nullptr) : Json(text);
  };
  for (const Layout& layout : converters::known_layouts()) {
    json["layouts"].push_back({{"family", layout.family},
                               {"format", layout.format},
                               {"what", layout.what},
                               {"files", list_of(layout.files)},
                               {"written_as", or_null(layout.written_as)},
                               {"resumed_by", or_null(layout.resumed_by)}});
  }
  for (const RefusedLayout& layout : converters::refused_layouts()) {
    json["refused"].push_back(
        {{"name", layout.name}, {"what", layout.what}, {"files", list_of(layout.files)}});
  }
  return json;
}

std::string uses_text(const Layout& layout) {
  std::string text = "read";
  if (!layout.written_as.empty()) text += fmt::format("; written as {}", layout.written_as);
  if (!layout.resumed_by.empty()) text += fmt::format("; resumed by {}", layout.resumed_by);
  return text;
}

std::string formats_text() {
  std::string text;
  std::string_view family;
  for (const Layout& layout : converters::known_layouts()) {
    if (layout.family != family) text += fmt::format("{}\n", layout.family);
    family = layout.family;
    text += fmt::format("  {}\n      format  {}: {}\n      files   {}\n", layout.what,
                        layout.format, uses_text(layout), layout.files);
  }
  text += "recognised and refused, with a message that says what to do\n";
  for (const RefusedLayout& layout : converters::refused_layouts()) {
    text += fmt::format("  {}\n      files   {}\n", layout.what,
                        layout.files.empty() ? "any name: the first bytes tell" : layout.files);
  }
  return text;
}

int run(const FormatsRequest& options) {
  if (options.rules_schema) {
    print_json(tools::rules_schema());
  } else if (options.json) {
    print_json(formats_json());
  } else {
    print(formats_text());
  }
  return 0;
}

}  // namespace

void add_formats(CLI::App& app, Action& action) {
  const auto options = std::make_shared<FormatsRequest>();
  CLI::App* command =
      add_verb(app, action, "formats",
               "Every layout that is recognised: its files, and what can be done", options, run);
  command->add_flag("--json", options->json, "As JSON");
  command->add_flag("--rules-schema,--rules_schema", options->rules_schema,
                    "Print a JSON Schema of files of rules (--rules, --save-rules) instead");
}

}  // namespace unishard::cli
