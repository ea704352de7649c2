#include "safetensors/large_json.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <string>
#include <unordered_set>
#include <vector>

namespace unishard::converters::safetensors {
namespace {

/// A first pass over the text that keeps nothing but the keys of open objects. It is apart from
/// building the tree because the parser's own callbacks look at all siblings after every object.
class Strictness final : public LargeJson::json_sax_t {
 public:
  explicit Strictness(std::string_view what) : what_(what) {}

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
    if (keys_.back().insert(name).second) return true;
    raise(ErrorCode::Corrupt,
          fmt::format("{}: key {} occurs twice in one object", what_, quote(name)));
  }
  bool parse_error(std::size_t byte, const std::string&,
                   const LargeJson::exception& error) override {
    const bool is_number = error.id == 406;  // "number overflow"
    raise(ErrorCode::Corrupt, fmt::format("{}: not valid JSON at byte {}{}", what_, byte,
                                          is_number ? ": a number is out of range" : ""));
  }

 private:
  bool open() {
    constexpr std::size_t kDepth = 64;
    keys_.emplace_back();
    if (keys_.size() <= kDepth) return true;
    raise(ErrorCode::Corrupt, fmt::format("{}: nested deeper than {} levels", what_, kDepth));
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  std::string_view what_;
  std::vector<std::unordered_set<std::string>> keys_;  ///< one per open object or array
};

}  // namespace

LargeJson parse_large_json(std::string_view text, std::string_view what) {
  // The parser would take a NUL for the end of the text.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    raise(ErrorCode::Corrupt, fmt::format("{}: a NUL at byte {}", what, nul));
  }
  Strictness strictness(what);
  LargeJson::sax_parse(text, &strictness);
  return LargeJson::parse(text);
}

}  // namespace unishard::converters::safetensors
