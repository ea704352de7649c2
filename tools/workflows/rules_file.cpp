#include "workflows/rules_file.hpp"

#include "unishard/format/error.hpp"

#include "workflows/name_layouts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>

namespace unishard::tools {
namespace {

constexpr const char *kLayout = "layout", *kRenames = "renames", *kCuts = "cuts",
                     *kComment = "comment", *kSchema = "$schema", *kFrom = "from", *kTo = "to";
constexpr std::string_view kRulesHint =
    "`unishard formats --rules-schema` prints the form of the file";

class RulesReader {
 public:
  RulesReader(const Path& path, std::string_view option) : path_(path), option_(option) {}

  Rules read() const {
    const std::string text = read_file();
    const std::size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == text.npos || text[begin] != '{') {
      if (option_ != "--rename") refuse("it is no object of JSON");
      return read_lines(text);
    }
    Json json;
    try {
      json = parse_json(text, path_.string());
    } catch (const Error& error) {
      raise(ErrorCode::InvalidArgument, fmt::format("{}: {}", option_, error.what()),
            std::string(kRulesHint));
    }
    return read_object(json);
  }

 private:
  [[noreturn]] void refuse(std::string_view problem) const {
    raise(ErrorCode::InvalidArgument, fmt::format("{}: {}: {}", option_, path_.string(), problem),
          std::string(kRulesHint));
  }

  std::string read_file() const {
    std::error_code code;
    const bool is_folder = std::filesystem::is_directory(path_, code);
    std::ifstream file(path_);
    std::string text;
    if (file && !is_folder) {
      text.resize(kRulesBytes);
      file.read(text.data(), static_cast<std::streamsize>(text.size()));
      text.resize(static_cast<std::size_t>(file.gcount()));
    }
    if (is_folder || file.bad() || !(file || file.eof())) {
      raise(ErrorCode::InvalidArgument,
            fmt::format("{}: cannot read {}{}", option_, path_.string(),
                        is_folder ? ", which is a folder" : ""),
            std::string(kRulesHint));
    }
    if (!file.eof())
      raise(ErrorCode::InvalidArgument,
            fmt::format("{}: {} is too large", option_, path_.string()));
    return text;
  }

  Rules read_lines(const std::string& text) const {
    Rules rules;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (!line.empty() && line[0] != '#') rules.renames.push_back(parse_rename(line));
    }
    return rules;
  }

  Rules read_object(const Json& json) const {
    constexpr std::array kOwnKeys = {kLayout, kRenames, kCuts, kComment, kSchema};
    const bool is_own =
        std::ranges::any_of(kOwnKeys, [&](const char* key) { return json.contains(key); });
    if (!is_own) return {.cuts = json};
    for (const auto& [key, value] : json.items()) {
      if (std::ranges::count(kOwnKeys, key) == 0)
        refuse(fmt::format("there is no key {}; the keys are {}", quote(key),
                           fmt::join(kOwnKeys, ", ")));
    }
    Rules rules;
    rules.layout = read_layout(json.value(kLayout, Json("")));
    rules.renames = read_renames(json.value(kRenames, Json::array()));
    rules.cuts = json.value(kCuts, Json());
    if (!rules.cuts.is_null() && !rules.cuts.is_object()) refuse("cuts is no object");
    return rules;
  }

  std::string read_layout(const Json& layout) const {
    if (!layout.is_string()) refuse("layout is no text");
    const auto name = layout.get<std::string>();
    const std::vector<std::string> known = name_layouts();
    if (!name.empty() && std::ranges::count(known, name) == 0)
      refuse(fmt::format("there is no layout {}; the layouts are {}", quote(name),
                         fmt::join(known, ", ")));
    return name;
  }

  std::vector<RenameRule> read_renames(const Json& list) const {
    if (!list.is_array()) refuse("renames is not a list");
    std::vector<RenameRule> renames;
    for (const Json& each : list) {
      const bool is_rule = each.is_object() && each.size() == 2 &&
                           each.value(kFrom, Json()).is_string() &&
                           each.value(kTo, Json()).is_string();
      if (!is_rule) refuse("renames holds what is no object with the texts from and to");
      renames.push_back({each[kFrom].get<std::string>(), each[kTo].get<std::string>()});
      require_expression(renames.back());
    }
    return renames;
  }

  const Path& path_;
  std::string_view option_;
};

Json list_of_patterns(const char* description) {
  return {{"type", "array"}, {"items", {{"type", "string"}}}, {"description", description}};
}

Json schema_of_cuts() {
  const Json sub_parameters = {
      {"type", "array"},
      {"description",
       "tensors that consist of others, one behind the other along partition_dim, each cut there; "
       "`shape` has the list of their sizes, or their number, at that place"},
      {"items",
       {{"type", "object"},
        {"required", {"patterns", "shape", "partition_dim"}},
        {"properties",
         {{"patterns", list_of_patterns("regular expressions of names")},
          {"shape", {{"type", "array"}}},
          {"partition_dim", {{"type", "integer"}, {"minimum", 0}}}}}}}};
  return {{"type", "object"},
          {"description",
           "how tensor-parallel ranks cut the parameters, with the keys of DeepSpeed's "
           "universal_checkpoint_info. A pattern is a regular expression of Python's re.match(). A "
           "tensor that no pattern matches was cut along dimension 0"},
          {"properties",
           {{"tp_replicated_parameter_patterns", list_of_patterns("every rank has all of it")},
            {"parameter_to_average_patterns",
             list_of_patterns("the mean of the ranks' tensors counts")},
            {"parameter_with_2_sub_params_cat_dim_0",
             list_of_patterns("two tensors, one behind the other, each cut along dimension 0")},
            {"parameter_with_sub_params", sub_parameters},
            {"parameter_with_row_parallelism_patterns", list_of_patterns("cut along dimension 1")},
            {"vocabulary_parameter_patterns",
             list_of_patterns("cut along dimension 0, with padding behind original_vocab_size")},
            {"original_vocab_size", {{"type", "integer"}, {"minimum", 1}}}}}};
}

}  // namespace

Rules read_rules(const Path& path, std::string_view option) {
  return RulesReader(path, option).read();
}

Json rules_json(const Rules& rules, const std::vector<std::string>& comment) {
  Json json = Json::object();
  if (!comment.empty()) json[kComment] = comment;
  if (!rules.layout.empty()) json[kLayout] = rules.layout;
  json[kRenames] = Json::array();
  for (const RenameRule& rule : rules.renames)
    json[kRenames].push_back({{kFrom, rule.from}, {kTo, rule.to}});
  if (!rules.cuts.is_null()) json[kCuts] = rules.cuts;
  return json;
}

void save_rules(Storage& storage, const Path& file, const Rules& rules) {
  const std::string text = rules_json(rules).dump(2) + "\n";
  const auto out = storage.create(file);
  out->write_at(0, std::as_bytes(std::span(text)));
  out->sync();
  out->close();
}

Json rules_schema() {
  const Json text = {{"type", "string"}};
  return {
      {"$schema", "https://json-schema.org/draft/2020-12/schema"},
      {"title", "Rules of unishard: names and cuts"},
      {"type", "object"},
      {"additionalProperties", false},
      {"properties",
       {{kSchema, text},
        {kComment, {{"description", "for people; a text or a list of texts"}}},
        {kLayout,
         {{"enum", name_layouts()},
          {"description",
           "as --layout; --save-rules writes it for a layout that changes more than names"}}},
        {kRenames,
         {{"type", "array"},
          {"description", "applied to every name, in this order"},
          {"items",
           {{"type", "object"},
            {"required", {kFrom, kTo}},
            {"additionalProperties", false},
            {"properties",
             {{kFrom,
               {{"type", "string"},
                {"description", "a regular expression (ECMAScript), of which every match counts"}}},
              {kTo,
               {{"type", "string"},
                {"description", "what a match becomes; $1 is the first group"}}}}}}}}},
        {kCuts, schema_of_cuts()}}}};
}

}  // namespace unishard::tools
