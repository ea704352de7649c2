#include "unishard/format/json.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <string>
#include <unordered_set>
#include <vector>

namespace unishard {
namespace {

// A first pass over the text that keeps nothing but the keys of open objects, and throws on what
// the grammar allows and we do not. It is apart from building the tree because the parser's own
// callbacks look at all siblings after every object.
class Strictness final : public SortedJson::json_sax_t {
 public:
  Strictness(std::string_view what, const JsonLimits& limits) : what_(what), limits_(limits) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
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
  bool open() {
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
  std::vector<std::unordered_set<std::string>> keys_;  // one per open object or array
};

template <class Tree>
Tree parse(std::string_view text, std::string_view what, const JsonLimits& limits) {
  if (text.size() > limits.bytes) {
    raise(ErrorCode::Corrupt, fmt::format("{}: {} bytes of JSON exceed the limit of {}", what,
                                          text.size(), limits.bytes));
  }
  // The parser would take a NUL for the end of the text.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    raise(ErrorCode::Corrupt, fmt::format("{}: not valid JSON: NUL at byte {}", what, nul));
  }
  Strictness strictness(what, limits);
  SortedJson::sax_parse(text, &strictness);
  return Tree::parse(text);
}

}  // namespace

Json parse_json(std::string_view text, std::string_view what, JsonLimits limits) {
  return parse<Json>(text, what, limits);
}

SortedJson parse_sorted_json(std::string_view text, std::string_view what, JsonLimits limits) {
  return parse<SortedJson>(text, what, limits);
}

}  // namespace unishard
