#include "workflows/rename_rules.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

namespace unishard::tools {
namespace {

/// How often an expression may look at the characters of one name. An ordinary one looks at all of
/// them from each of them; one that tries the same characters over and over takes for ever.
std::uint64_t allowed_steps(std::size_t name_bytes) {
  constexpr std::uint64_t kLooks = 16, kSpare = 10'000'000;
  return kSpare + kLooks * name_bytes * name_bytes;
}

struct TooManySteps {};

/// An iterator over characters. All iterators over a text count down together, with each look.
class CountedCharacter {
 public:
  using iterator_category = std::bidirectional_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountedCharacter() = default;
  CountedCharacter(const char* at, std::uint64_t* left) : at_(at), left_(left) {}

  reference operator*() const {
    count();
    return *at_;
  }
  CountedCharacter& operator++() {
    ++at_;
    return *this;
  }
  CountedCharacter operator++(int) { return {at_++, left_}; }
  CountedCharacter& operator--() {
    --at_;
    return *this;
  }
  CountedCharacter operator--(int) { return {at_--, left_}; }
  bool operator==(const CountedCharacter& other) const {
    count();
    return at_ == other.at_;
  }

 private:
  void count() const {
    if (left_ != nullptr && (*left_)-- == 0) throw TooManySteps();
  }

  const char* at_ = nullptr;
  std::uint64_t* left_ = nullptr;
};

/// std::regex backtracks, and has no limit of its own.
std::string replace_all(const std::string& fqn, const std::regex& from, const RenameRule& rule) {
  std::uint64_t left = allowed_steps(fqn.size());
  std::string out;
  try {
    std::regex_replace(std::back_inserter(out), CountedCharacter(fqn.data(), &left),
                       CountedCharacter(fqn.data() + fqn.size(), &left), from, rule.to);
  } catch (const TooManySteps&) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("--rename: {} takes too long to match {}", unishard::quote(rule.from),
                      unishard::quote(fqn)),
          "the expression can match the same text in too many ways: write it without a repetition "
          "inside a repetition, such as (a+)+");
  }
  return out;
}

}  // namespace

Renamer::Renamer(const std::vector<RenameRule>& rules)
    : rules_(rules), have_changed_(rules.size()) {
  for (const RenameRule& rule : rules) expressions_.emplace_back(rule.from);
}

std::string Renamer::operator()(std::string fqn) {
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    std::string renamed = replace_all(fqn, expressions_[i], rules_[i]);
    if (renamed.empty()) {
      raise(ErrorCode::InvalidArgument,
            fmt::format("--rename: {} makes an empty name from {}", unishard::quote(rules_[i].from),
                        unishard::quote(fqn)));
    }
    if (renamed.size() > limits::kNameBytes && renamed.size() > fqn.size()) {
      raise(ErrorCode::InvalidArgument,
            fmt::format("--rename: {} makes a name of {} bytes from {}; {} are possible",
                        unishard::quote(rules_[i].from), renamed.size(), unishard::quote(fqn),
                        limits::kNameBytes));
    }
    if (renamed != fqn) have_changed_[i] = true;
    fqn = std::move(renamed);
  }
  return fqn;
}

std::vector<RenameRule> Renamer::unused(std::size_t first) const {
  std::vector<RenameRule> rules;
  for (std::size_t i = first; i < rules_.size(); ++i) {
    if (!have_changed_[i]) rules.push_back(rules_[i]);
  }
  return rules;
}

namespace {

/// Throws: InvalidArgument for a reference to a group in another syntax, or to one that the
/// expression does not have.
void require_groups(const RenameRule& rule, std::size_t groups) {
  constexpr std::string_view kDigits = "0123456789";
  for (std::size_t at = 0; at + 1 < rule.to.size(); ++at) {
    const std::string_view digits = std::string_view(rule.to).substr(at + 1, 2);
    const std::size_t length = std::min(digits.find_first_not_of(kDigits), digits.size());
    if (length == 0) continue;
    if (rule.to[at] == '\\')
      raise(ErrorCode::InvalidArgument,
            fmt::format("--rename: {} refers to a group by \\{}", unishard::quote(rule.to),
                        digits.substr(0, length)),
            "write $1 for what the first group (...) matches");
    if (rule.to[at] == '$' && std::stoul(std::string(digits.substr(0, length))) > groups)
      raise(ErrorCode::InvalidArgument,
            fmt::format("--rename: {} refers to the group ${}, and {} has {}",
                        unishard::quote(rule.to), digits.substr(0, length),
                        unishard::quote(rule.from), groups),
            "each group is an expression in parentheses");
  }
}

}  // namespace

void require_expression(const RenameRule& rule) {
  if (rule.from.empty())
    raise(ErrorCode::InvalidArgument, "--rename: an empty text is no regular expression");
  try {
    const std::regex check(rule.from);
    require_groups(rule, check.mark_count());
  } catch (const std::regex_error&) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("--rename: {} is not a regular expression", unishard::quote(rule.from)));
  }
}

RenameRule parse_rename(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("--rename {}: not FROM=TO", unishard::quote(text)));
  }
  RenameRule rule{text.substr(0, equals), text.substr(equals + 1)};
  require_expression(rule);
  return rule;
}

}  // namespace unishard::tools
