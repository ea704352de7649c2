#pragma once
// Regular expressions of Python's `re`, with which universal_checkpoint_info tells parameters by
// their names. They come from a file, so they must not be able to take time without bound.
#include "unishard/format/memory.hpp"

#include <bitset>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::deepspeed {

/// One step of a pattern's program.
struct PatternStep {
  enum class Kind : std::uint8_t { Set, Split, Jump, Begin, End, EndOfText, Match };
  Kind kind = Kind::Match;
  std::bitset<256> set;                 ///< Set: the bytes that it takes
  std::uint32_t first = 0, second = 0;  ///< Split, Jump: the next steps
};

/// A compiled pattern. Names are taken as bytes: "." and a letter outside of ASCII are several.
class NamePattern {
 public:
  /// Throws: Unsupported, naming the pattern, for what it does not have (look-around, back
  /// references, flags), and for a pattern that is not one or is too large.
  explicit NamePattern(std::string_view pattern);

  /// Does what re.match(pattern, name) does: the pattern must match a beginning of the name.
  /// Complexity: proportional to the lengths of pattern and name.
  bool matches(std::string_view name) const;
  /// Returns the only name that a pattern like "^a\.b$" matches; nullopt for other patterns.
  const std::optional<std::string>& only_name() const { return only_name_; }
  std::size_t steps() const { return program_.size(); }

 private:
  std::vector<PatternStep> program_;
  std::optional<std::string> only_name_;
};

/// A list of patterns, each with a number.
class NamePatterns {
 public:
  /// Throws: as NamePattern() does; MemoryLimit.
  void add(std::string_view pattern, std::size_t number);
  /// Returns the numbers of all patterns that match, ascending and each once.
  /// Throws: Unsupported when the patterns and names of the checkpoint take too much work.
  std::vector<std::size_t> find(std::string_view name) const;
  bool empty() const { return names_.empty() && patterns_.empty(); }

 private:
  std::multimap<std::string, std::size_t, std::less<>> names_;  ///< of patterns with one name
  std::vector<std::pair<NamePattern, std::size_t>> patterns_;
  MemoryBudget memory_{"universal_checkpoint_info"};
  mutable std::uint64_t work_ = 0;
};

}  // namespace unishard::converters::deepspeed
