#include "workflows/rename_rules.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/storage.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace unishard::tools {
namespace {

RenameRule parse_rename(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("--rename {}: not FROM=TO", unishard::quote(text)));
  }
  RenameRule rule{text.substr(0, equals), text.substr(equals + 1)};
  try {
    const std::regex check(rule.from);
  } catch (const std::regex_error&) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("--rename: {} is not a regular expression", unishard::quote(rule.from)));
  }
  return rule;
}

/// The file of `--rename @file`: a regular file, or what a shell makes of <(...).
std::string rules_text(const Path& path) {
  constexpr std::size_t kBytes = std::size_t{16} << 20;
  std::error_code code;
  const bool is_folder = std::filesystem::is_directory(path, code);
  std::ifstream file(path);
  std::string text;
  if (file && !is_folder) {
    text.resize(kBytes);
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(file.gcount()));
  }
  if (is_folder || file.bad() || !(file || file.eof())) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("--rename: cannot read {}{}", path.string(),
                      is_folder ? ", which is a folder" : ""),
          "@ is followed by the name of a file with one FROM=TO a line");
  }
  if (!file.eof())
    raise(ErrorCode::InvalidArgument, fmt::format("--rename: {} is too large", path.string()));
  return text;
}

}  // namespace

Renamer::Renamer(const std::vector<RenameRule>& rules) {
  for (const RenameRule& rule : rules) rules_.emplace_back(std::regex(rule.from), rule.to);
}

std::string Renamer::operator()(std::string fqn) const {
  for (const auto& [from, to] : rules_) fqn = std::regex_replace(fqn, from, to);
  return fqn;
}

std::vector<RenameRule> parse_renames(const std::vector<std::string>& texts) {
  std::vector<RenameRule> rules;
  for (const std::string& text : texts) {
    if (!text.starts_with('@')) {
      rules.push_back(parse_rename(text));
      continue;
    }
    std::istringstream lines(rules_text(text.substr(1)));
    for (std::string line; std::getline(lines, line);) {
      if (!line.empty() && line[0] != '#') rules.push_back(parse_rename(line));
    }
  }
  return rules;
}

}  // namespace unishard::tools
