#include "formats/deepspeed/name_pattern.hpp"

#include "unishard/format/error.hpp"

#include "formats/deepspeed/layout.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard::converters::deepspeed {
namespace {

using Set = std::bitset<256>;
using Kind = PatternStep::Kind;

constexpr std::size_t kPatternBytes = 4096;
constexpr std::size_t kSteps = 20000;
constexpr unsigned kNesting = 64;
constexpr unsigned kRepeats = 1000;
/// Upper bound on the work of one list: all its patterns and all names together.
constexpr std::uint64_t kWork = 2'000'000'000;

void add_range(Set& set, unsigned first, unsigned last) {
  for (unsigned c = first; c <= last; ++c) set.set(c);
}

/// Returns the set of \d, \w, \s and their negations; nullopt for other letters. Bytes of other
/// characters than ASCII's count as letters.
std::optional<Set> class_of(char letter) {
  Set set;
  switch (letter) {
    case 'd':
    case 'D':
      add_range(set, '0', '9');
      break;
    case 'w':
    case 'W':
      add_range(set, '0', '9');
      add_range(set, 'A', 'Z');
      add_range(set, 'a', 'z');
      add_range(set, 128, 255);
      set.set('_');
      break;
    case 's':
    case 'S':
      add_range(set, '\t', '\r');
      add_range(set, 0x1c, 0x20);
      break;
    default:
      return std::nullopt;
  }
  return letter >= 'a' ? set : ~set;
}

bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/// Translates a pattern into a program by recursive descent.
class Compiler {
 public:
  explicit Compiler(std::string_view pattern) : pattern_(pattern) {
    if (pattern.size() > kPatternBytes) refuse("it is too long");
  }

  std::vector<PatternStep> compile() {
    alternatives(0);
    if (at_ != pattern_.size()) refuse("a parenthesis is closed that was not opened");
    emit({Kind::Match, {}, 0, 0});
    return std::move(program_);
  }

 private:
  [[noreturn]] void refuse(std::string_view problem) const {
    raise(ErrorCode::Unsupported,
          fmt::format("the pattern {} of universal_checkpoint_info is not understood: {}",
                      unishard::quote(std::string(pattern_)), problem),
          kMergeRanks);
  }

  bool is_end() const { return at_ == pattern_.size(); }
  char peek() const { return pattern_[at_]; }
  char next() {
    if (is_end()) refuse("it ends too early");
    return pattern_[at_++];
  }
  bool take(char c) {
    if (is_end() || peek() != c) return false;
    ++at_;
    return true;
  }

  std::uint32_t here() const { return static_cast<std::uint32_t>(program_.size()); }
  std::uint32_t emit(PatternStep step) {
    if (program_.size() == kSteps) refuse("it is too large");
    program_.push_back(step);
    return here() - 1;
  }
  /// Inserts a step before the steps from `begin` on, which are moved.
  void insert(std::uint32_t begin, PatternStep step) {
    emit({});
    for (std::uint32_t i = begin; i + 1 < here(); ++i) {
      for (std::uint32_t* target : {&program_[i].first, &program_[i].second}) {
        if (*target >= begin) ++*target;
      }
    }
    std::rotate(program_.begin() + begin, program_.end() - 1, program_.end());
    program_[begin] = step;
  }

  void alternatives(unsigned depth) {
    if (depth > kNesting) refuse("it is nested too deeply");
    const std::uint32_t begin = here();
    sequence(depth);
    if (!take('|')) return;
    insert(begin, {Kind::Split, {}, begin + 1, 0});
    const std::uint32_t jump = emit({Kind::Jump, {}, 0, 0});
    program_[begin].second = here();
    alternatives(depth);
    program_[jump].first = here();
  }

  void sequence(unsigned depth) {
    while (!is_end() && peek() != '|' && peek() != ')') {
      const std::uint32_t begin = here();
      item(depth);
      repeat(begin);
    }
  }

  void item(unsigned depth) {
    switch (const char c = next()) {
      case '(':
        if (take('?') && next() != ':') refuse("it has a group of the kind (?...)");
        alternatives(depth + 1);
        if (!take(')')) refuse("a parenthesis is not closed");
        return;
      case '[':
        emit({Kind::Set, bracket(), 0, 0});
        return;
      case '.':
        emit({Kind::Set, ~Set().set('\n'), 0, 0});
        return;
      case '^':
        emit({Kind::Begin, {}, 0, 0});
        return;
      case '$':
        emit({Kind::End, {}, 0, 0});
        return;
      case '\\':
        return escaped();
      case '*':
      case '+':
      case '?':
        refuse("there is nothing to repeat");
      default:
        emit({Kind::Set, Set().set(static_cast<unsigned char>(c)), 0, 0});
    }
  }

  void escaped() {
    if (take('A')) return emit({Kind::Begin, {}, 0, 0}), void();
    if (take('Z')) return emit({Kind::EndOfText, {}, 0, 0}), void();
    emit({Kind::Set, escaped_set(), 0, 0});
  }

  /// Returns the set of what follows a backslash.
  Set escaped_set() {
    const char c = next();
    if (const auto set = class_of(c)) return *set;
    if (c == 'n') return Set().set('\n');
    if (c == 't') return Set().set('\t');
    if (is_letter_or_digit(c)) refuse(fmt::format("it has \\{}", c));
    return Set().set(static_cast<unsigned char>(c));
  }

  Set bracket() {
    Set set;
    const bool is_negated = take('^');
    for (bool is_first = true; is_first || peek_in_bracket() != ']'; is_first = false) {
      const char c = next();
      Set part = c == '\\' ? escaped_set() : Set().set(static_cast<unsigned char>(c));
      const bool is_range = at_ + 1 < pattern_.size() && peek() == '-' && pattern_[at_ + 1] != ']';
      if (is_range) {
        ++at_;
        const char last = next();
        const unsigned from = static_cast<unsigned char>(c), to = static_cast<unsigned char>(last);
        if (c == '\\' || last == '\\' || from > to) refuse("it has a range that is not one");
        add_range(part, from, to);
      }
      set |= part;
    }
    ++at_;
    return is_negated ? ~set : set;
  }
  char peek_in_bracket() const {
    if (is_end()) refuse("a bracket is not closed");
    return peek();
  }

  /// Applies the repetition that may follow to the steps from `begin` on.
  void repeat(std::uint32_t begin) {
    unsigned least = 0, most = 0;
    bool is_endless = false;
    if (take('*')) {
      is_endless = true;
    } else if (take('+')) {
      least = 1;
      is_endless = true;
    } else if (take('?')) {
      most = 1;
    } else if (!counted(least, most, is_endless)) {
      return;
    }
    take('?');  // the shortest match instead of the longest: there is one in both cases
    if (!is_end() && (peek() == '*' || peek() == '+' || peek() == '?'))
      refuse("a repetition is repeated");
    expand(begin, least, most, is_endless);
  }

  /// Reads {m}, {m,}, {,n} or {m,n}. Other braces stand for themselves.
  bool counted(unsigned& least, unsigned& most, bool& is_endless) {
    const std::size_t begin = at_;
    if (!take('{')) return false;
    const auto low = number();
    const bool has_comma = take(',');
    const auto high = has_comma ? number() : low;
    if (!take('}') || (!low && !(has_comma && high))) {
      at_ = begin;
      return false;
    }
    least = low.value_or(0);
    is_endless = has_comma && !high;
    most = high.value_or(least);
    if (most < least) refuse("a repetition has its bounds the wrong way round");
    return true;
  }

  std::optional<unsigned> number() {
    std::optional<unsigned> value;
    while (!is_end() && peek() >= '0' && peek() <= '9') {
      value = value.value_or(0) * 10 + static_cast<unsigned>(next() - '0');
      if (*value > kRepeats) refuse("it repeats too often");
    }
    return value;
  }

  void expand(std::uint32_t begin, unsigned least, unsigned most, bool is_endless) {
    const std::vector<PatternStep> body(program_.begin() + begin, program_.end());
    program_.resize(begin);
    const auto copy = [&] {
      const std::uint32_t shift = here() - begin;
      for (PatternStep step : body) {
        step.first += shift;
        step.second += shift;
        emit(step);
      }
    };
    for (unsigned i = 0; i < least; ++i) copy();
    if (is_endless) {
      const std::uint32_t split = emit({Kind::Split, {}, here() + 1, 0});
      copy();
      emit({Kind::Jump, {}, split, 0});
      program_[split].second = here();
    }
    std::vector<std::uint32_t> optional;
    for (unsigned i = least; !is_endless && i < most; ++i) {
      optional.push_back(emit({Kind::Split, {}, here() + 1, 0}));
      copy();
    }
    for (const std::uint32_t split : optional) program_[split].second = here();
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  std::vector<PatternStep> program_;
};

/// The steps that a program can be at, each once.
class Threads {
 public:
  explicit Threads(const std::vector<PatternStep>& program)
      : program_(&program), entered_(program.size(), 0) {}

  void clear() {
    ++round_;
    steps_.clear();
    has_match_ = false;
  }
  /// Adds a step, and those that follow it without taking a byte.
  void add(std::uint32_t step, std::string_view name, std::size_t at) {
    waiting_.push_back(step);
    while (!waiting_.empty()) {
      const std::uint32_t i = waiting_.back();
      waiting_.pop_back();
      if (entered_[i] == round_) continue;
      entered_[i] = round_;
      follow(i, name, at);
    }
  }
  const std::vector<std::uint32_t>& steps() const { return steps_; }
  bool has_match() const { return has_match_; }

 private:
  void follow(std::uint32_t i, std::string_view name, std::size_t at) {
    const PatternStep& step = (*program_)[i];
    const bool is_at_end = at == name.size();
    switch (step.kind) {
      case Kind::Set:
        return steps_.push_back(i);
      case Kind::Split:
        waiting_.push_back(step.second);
        return waiting_.push_back(step.first);
      case Kind::Jump:
        return waiting_.push_back(step.first);
      case Kind::Begin:
        if (at == 0) waiting_.push_back(i + 1);
        return;
      case Kind::End:  // also before a newline at the end
        if (is_at_end || (at + 1 == name.size() && name[at] == '\n')) waiting_.push_back(i + 1);
        return;
      case Kind::EndOfText:
        if (is_at_end) waiting_.push_back(i + 1);
        return;
      case Kind::Match:
        has_match_ = true;
    }
  }

  const std::vector<PatternStep>* program_;
  std::vector<std::uint64_t> entered_;  ///< the round in which a step was added last
  std::uint64_t round_ = 0;
  std::vector<std::uint32_t> steps_, waiting_;
  bool has_match_ = false;
};

std::optional<std::string> only_name_of(const std::vector<PatternStep>& program) {
  if (program.size() < 2 || (program.end() - 2)->kind != Kind::End) return std::nullopt;
  std::string name;
  for (std::size_t i = 0; i + 2 < program.size(); ++i) {
    if (i == 0 && program[i].kind == Kind::Begin) continue;
    if (program[i].kind != Kind::Set || program[i].set.count() != 1) return std::nullopt;
    unsigned byte = 0;
    while (!program[i].set.test(byte)) ++byte;
    name.push_back(static_cast<char>(byte));
  }
  return name;
}

}  // namespace

NamePattern::NamePattern(std::string_view pattern)
    : program_(Compiler(pattern).compile()), only_name_(only_name_of(program_)) {}

bool NamePattern::matches(std::string_view name) const {
  Threads now(program_), after(program_);
  now.clear();
  now.add(0, name, 0);
  for (std::size_t at = 0; at < name.size() && !now.has_match() && !now.steps().empty(); ++at) {
    after.clear();
    const auto byte = static_cast<unsigned char>(name[at]);
    for (const std::uint32_t step : now.steps()) {
      if (program_[step].set.test(byte)) after.add(step + 1, name, at + 1);
    }
    std::swap(now, after);
  }
  return now.has_match();
}

void NamePatterns::add(std::string_view pattern, std::size_t number) {
  NamePattern compiled(pattern);
  memory_.charge(pattern.size() + compiled.steps() * sizeof(PatternStep) + sizeof(NamePattern));
  if (compiled.only_name()) {
    names_.emplace(*compiled.only_name(), number);
  } else {
    patterns_.emplace_back(std::move(compiled), number);
  }
}

std::vector<std::size_t> NamePatterns::find(std::string_view name) const {
  std::vector<std::size_t> found;
  for (auto [at, end] = names_.equal_range(name); at != end; ++at) found.push_back(at->second);
  for (const auto& [pattern, number] : patterns_) {
    work_ += (name.size() + 1) * pattern.steps();
    if (work_ > kWork) {
      raise(ErrorCode::Unsupported,
            "the patterns of universal_checkpoint_info take too much work to match");
    }
    if (pattern.matches(name)) found.push_back(number);
  }
  std::ranges::sort(found);
  found.erase(std::ranges::unique(found).begin(), found.end());
  return found;
}

}  // namespace unishard::converters::deepspeed
