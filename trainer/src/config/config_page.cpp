// The table of keys as a page for people (trainer/CONFIG.md) and as a schema for editors.
#include "unishard/trainer/config_keys.hpp"

#include <fmt/format.h>

#include <cmath>

namespace unishard::trainer {
namespace {

constexpr std::string_view kIntroduction =
    R"(# The configuration

`--config` takes DeepSpeed's JSON. This page has every key of DeepSpeed 0.19, with DeepSpeed's words. It is written from the table in `src/config`:
`unishard config --page` prints it.

- **Keys.** A key that is not in the table is an error that names the nearest one. Keys that begin with `_` or `//`, and `comment`, are comments; so
  is the text behind `//` or `#`, and between `/*` and `*/`.
- **`"auto"`** is what the Hugging Face Trainer makes of it: the option of train_gpt, else the Trainer's own default. The first lines of a run list these
  values. For other keys it means the default.
- **Refused** keys would change the result and are not supported. Switched off (`false`, `0`, `"enabled": false`, the default), they are accepted;
  those whose default is `true` are accepted with that.
- **Accepted** keys change no result; where a value asks for something, the first lines say what happens instead.
- `train_gpt --print-config` and `unishard config FILE` print every value and where it comes from. `unishard config --explain KEY` prints what this page
  says of a key, `unishard config --schema` a JSON Schema for editors.
)";

std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

std::string meaning(const ConfigKey& key) {
  std::string text(key.text);
  if (key.use == KeyUse::Refused) text = fmt::format("**Refused:** {}.", text);
  if (key.use == KeyUse::Noted) text = fmt::format("Accepted: {}.", text);
  if (!key.of.empty()) text += fmt::format(" ({})", key.of);
  if (const std::string automatic = automatic_text(key); !automatic.empty())
    text += " " + automatic;
  return text;
}

std::string row(const ConfigKey& key) {
  return fmt::format("| `{}` | {} | {} | {} |\n", key.name,
                     key.type == KeyType::Section ? "" : cell(values_text(key)),
                     key.initial.empty() ? "" : fmt::format("`{}`", key.initial),
                     cell(meaning(key)));
}

std::string old_names() {
  std::string text = "\n## Older names\n\n| In the file | Read as |\n|---|---|\n";
  for (const OldKey& old : old_config_keys()) {
    const std::string_view dot = old.section.empty() ? "" : ".";
    const std::string meant =
        old.if_true.empty() ? std::string() : fmt::format(" `{}`, when it is true", old.if_true);
    text += fmt::format("| `{}{}{}` | `{}`{} |\n", old.section, dot, old.name, old.now, meant);
  }
  return text + "| `zero_optimization: true` | `zero_optimization.stage` 1 |\n";
}

const char* schema_type(KeyType type) {
  switch (type) {
    case KeyType::Boolean:
      return "boolean";
    case KeyType::Integer:
    case KeyType::Number:
      return "number";
    case KeyType::Text:
      return "string";
    case KeyType::Pair:
      return "array";
    case KeyType::Section:
      return "object";
    case KeyType::Any:
      break;
  }
  return nullptr;
}

Json words_of(std::string_view choices) {
  Json words = Json::array();
  for (std::size_t begin = 0; begin < choices.size();) {
    const std::size_t end = std::min(choices.find(' ', begin), choices.size());
    words.push_back(std::string(choices.substr(begin, end - begin)));
    begin = end + 1;
  }
  return words;
}

Json schema_of(const ConfigKey& key) {
  Json plain = Json::object();
  if (const char* type = schema_type(key.type)) plain["type"] = type;
  if (key.type == KeyType::Integer) plain["multipleOf"] = 1;
  if (std::isfinite(key.least) && key.type != KeyType::Pair) plain["minimum"] = key.least;
  if (std::isfinite(key.most) && key.type != KeyType::Pair) plain["maximum"] = key.most;
  if (!key.choices.empty()) plain["enum"] = words_of(key.choices);
  if (key.type == KeyType::Pair) {
    plain["items"] = {{"type", "number"}, {"minimum", key.least}, {"exclusiveMaximum", key.most}};
    plain["minItems"] = 2;
    plain["maxItems"] = 2;
  }
  Json schema = Json::object();
  schema["description"] = meaning(key);
  if (!key.initial.empty()) schema["default"] = Json::parse(key.initial);
  schema["anyOf"] = {plain, {{"enum", {"auto", nullptr}}}};
  return schema;
}

/// Returns the schema of an object that has the keys of `section`.
Json section_schema(const std::string& section) {
  Json properties = Json::object();
  for (const ConfigKey& key : config_keys()) {
    if (key.section != section) continue;
    const bool is_section = key.type == KeyType::Section;
    const std::string name(key.name);
    properties[name] = is_section ? section_schema(path_of(key)) : schema_of(key);
    if (is_section) properties[name]["description"] = std::string(key.text);
  }
  for (const OldKey& old : old_config_keys()) {
    if (old.section != section) continue;
    properties[std::string(old.name)] = {{"description", fmt::format("Older name of {}.", old.now)},
                                         {"deprecated", true}};
  }
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"patternProperties", {{"^(_|//|#|comment)", Json::object()}}},
          {"additionalProperties", false}};
}

}  // namespace

std::string config_page() {
  std::string page(kIntroduction);
  std::string_view section = "\n";
  for (const bool is_top : {true, false}) {
    for (const ConfigKey& key : config_keys()) {
      if (key.section.empty() != is_top) continue;
      if (key.section != section) {
        section = key.section;
        page += fmt::format("\n## {}\n\n| Key | Values | Default | Meaning |\n|---|---|---|---|\n",
                            is_top ? "Top level" : fmt::format("`{}`", section));
      }
      page += row(key);
    }
  }
  return page + old_names();
}

Json config_schema() {
  Json schema = section_schema("");
  Json whole = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                {"title", "DeepSpeed configuration as UniShard reads it"}};
  whole.update(schema);
  // The old form of the whole section.
  Json& zero = whole["properties"]["zero_optimization"];
  zero = {{"description", zero["description"]}, {"anyOf", {zero, {{"type", "boolean"}}}}};
  return whole;
}

}  // namespace unishard::trainer
