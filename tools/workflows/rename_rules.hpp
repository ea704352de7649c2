#pragma once
// New names for parameters: the rules of `--rename`.
#include <regex>
#include <string>
#include <vector>

namespace unishard::tools {

/// Every match of the regular expression `from` (ECMAScript) in an fqn becomes `to`, where $1 is
/// its first group.
struct RenameRule {
  std::string from;
  std::string to;
};

/// Reads "FROM=TO".
/// Throws: InvalidArgument naming the rule.
RenameRule parse_rename(const std::string& text);
/// Throws: InvalidArgument, naming the rule, when `from` is no regular expression, or an empty one.
void require_expression(const RenameRule& rule);

/// Applies rules in their order. Not thread-safe.
class Renamer {
 public:
  explicit Renamer(const std::vector<RenameRule>& rules);
  /// Throws: InvalidArgument naming rule and name where a rule backtracks without end, or makes a
  /// name longer than any may be.
  std::string operator()(std::string fqn);

  /// Returns the rules, from the given one on, that have changed no name so far.
  std::vector<RenameRule> unused(std::size_t first) const;

 private:
  std::vector<RenameRule> rules_;
  std::vector<std::regex> expressions_;  ///< of the rules
  std::vector<bool> have_changed_;       ///< a name, by rule
};

}  // namespace unishard::tools
