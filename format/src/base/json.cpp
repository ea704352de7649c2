#include "unishard/format/json.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/memory.hpp"

#include "base/json_items.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace unishard {
namespace {

// Checks the text in a first pass that keeps only the keys of open objects. It throws on what
// JSON's grammar allows and UniShard does not, and on a tree that would take too much memory.
// Building the tree is a second pass because the parser's own callbacks look at all siblings after
// every object.
class Strictness final : public SortedJson::json_sax_t {
 public:
  Strictness(std::string_view what, const JsonLimits& limits)
      : what_(what), limits_(limits), memory_(std::string(what)) {}

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool string(string_t& text) override { return value(sizeof(std::string) + text.size()); }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    memory_.charge(sizeof(std::string) + name.size());
    auto& keys = keys_.back();
    if (!keys.insert(name).second) {
      raise(ErrorCode::Corrupt,
            fmt::format("{}: key {} occurs twice in one object", what_, quote(name)));
    }
    if (keys.size() > limits_.keys_per_object) {
      raise(ErrorCode::Corrupt,
            fmt::format("{}: an object has more than {} keys", what_, limits_.keys_per_object));
    }
    return true;
  }

  bool parse_error(std::size_t byte, const std::string&,
                   const SortedJson::exception& error) override {
    constexpr int kNumberOverflow = 406;
    raise(ErrorCode::Corrupt,
          fmt::format("{}: not valid JSON at byte {}{}", what_, byte,
                      error.id == kNumberOverflow ? ": a number is out of range" : ""));
  }

 private:
  // Charges the memory that the tree will take. A growing vector holds up to twice its values.
  bool value(std::uint64_t heap_bytes = 0) {
    memory_.charge(2 * sizeof(Json) + heap_bytes);
    return true;
  }
  bool open() {
    value(sizeof(Json::object_t));
    keys_.emplace_back();
    if (keys_.size() <= limits_.depth) return true;
    raise(ErrorCode::Corrupt,
          fmt::format("{}: nested deeper than {} levels", what_, limits_.depth));
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  std::string_view what_;
  JsonLimits limits_;
  MemoryBudget memory_;
  std::vector<std::unordered_set<std::string>> keys_;  // one per open object or array
};

void check(std::string_view text, std::string_view what, const JsonLimits& limits) {
  if (text.size() > limits.bytes) {
    raise(ErrorCode::Corrupt, fmt::format("{}: {} bytes of JSON exceed the limit of {}", what,
                                          text.size(), limits.bytes));
  }
  // The parser takes a NUL for the end of the text.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    raise(ErrorCode::Corrupt, fmt::format("{}: not valid JSON: NUL at byte {}", what, nul));
  }
  Strictness strictness(what, limits);
  SortedJson::sax_parse(text, &strictness);
}

// Walks over a text that is known to be valid JSON.
class Walk {
 public:
  explicit Walk(std::string_view text, std::size_t at = 0) : text_(text), at_(at) { skip_space(); }

  std::size_t at() const { return at_; }
  char here() const { return text_[at_]; }
  /// Skips one structural character and the white space after it.
  void skip() {
    ++at_;
    skip_space();
  }
  /// Skips a value and the white space after it; returns the value's text.
  std::string_view value() {
    const std::size_t begin = at_;
    std::size_t depth = 0;
    do {
      if (here() == '"') {
        skip_string();
        continue;
      }
      if (here() == '{' || here() == '[') ++depth;
      if (here() == '}' || here() == ']') --depth;
      ++at_;
    } while (depth > 0 || (at_ < text_.size() && !ends_value(here())));
    const std::string_view whole = text_.substr(begin, at_ - begin);
    skip_space();
    return whole;
  }

 private:
  static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
  static bool ends_value(char c) {
    return c == ',' || c == ':' || c == ']' || c == '}' || is_space(c);
  }
  void skip_space() {
    while (at_ < text_.size() && is_space(here())) ++at_;
  }
  void skip_string() {
    for (++at_; here() != '"'; ++at_)
      if (here() == '\\') ++at_;
    ++at_;
  }

  std::string_view text_;
  std::size_t at_;
};

/// Returns the offset of the array `key` of the outermost object; npos when it has none.
std::size_t find_array(std::string_view text, std::string_view key) {
  Walk walk(text);
  if (walk.here() != '{') return std::string_view::npos;
  for (walk.skip(); walk.here() != '}';) {
    const bool is_key = Json::parse(walk.value()).get_ref<const std::string&>() == key;
    walk.skip();  // the colon
    if (is_key && walk.here() == '[') return walk.at();
    walk.value();
    if (walk.here() == ',') walk.skip();
  }
  return std::string_view::npos;
}

}  // namespace

Json parse_json(std::string_view text, std::string_view what, JsonLimits limits) {
  check(text, what, limits);
  return Json::parse(text);
}

SortedJson parse_sorted_json(std::string_view text, std::string_view what, JsonLimits limits) {
  check(text, what, limits);
  return SortedJson::parse(text);
}

std::string unreadable_reason(const Json& value, JsonLimits limits) {
  std::vector<std::pair<const Json*, unsigned>> open;
  if (value.is_structured()) open.emplace_back(&value, 1);
  unsigned deepest = 0;
  while (!open.empty()) {
    const auto [outer, depth] = open.back();
    open.pop_back();
    deepest = std::max(deepest, depth);
    if (outer->is_object() && outer->size() > limits.keys_per_object) {
      return fmt::format("an object in it has {} keys; up to {} are read", outer->size(),
                         limits.keys_per_object);
    }
    for (const Json& inner : *outer) {
      if (inner.is_structured()) open.emplace_back(&inner, depth + 1);
    }
  }
  if (deepest <= limits.depth) return {};
  return fmt::format("it is nested {} levels deep; up to {} are read", deepest, limits.depth);
}

namespace detail {

Json parse_json_but_items(std::string_view text, std::string_view key,
                          std::vector<std::string_view>& items, std::string_view what,
                          JsonLimits limits) {
  check(text, what, limits);
  items.clear();
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // as the parser does
  const std::size_t begin = find_array(text, key);
  if (begin == std::string_view::npos) return Json::parse(text);
  Walk walk(text, begin);
  for (walk.skip(); walk.here() != ']';) {
    items.push_back(walk.value());
    if (walk.here() == ',') walk.skip();
  }
  std::string rest(text.substr(0, begin + 1));
  rest += text.substr(walk.at());
  return Json::parse(rest);
}

}  // namespace detail
}  // namespace unishard
