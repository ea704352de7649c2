#include "unishard/format/json.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <string>
#include <unordered_set>
#include <vector>

namespace unishard {
namespace {

// Objects are searched linearly, so their size is limited to keep reading linear in the file.
constexpr std::size_t kKeysPerObject = 16384;

// Called by the parser at every event; throws on what the grammar allows and we do not.
class Strictness {
 public:
  Strictness(std::string_view what, unsigned depth) : what_(what), depth_limit_(depth) {}

  bool operator()(int depth, Json::parse_event_t event, Json& value) {
    using Event = Json::parse_event_t;
    if (depth > static_cast<int>(depth_limit_)) {
      raise(ErrorCode::Corrupt,
            fmt::format("{}: nested deeper than {} levels", what_, depth_limit_));
    }
    if (event == Event::object_start) {
      keys_.emplace_back();
    } else if (event == Event::object_end) {
      keys_.pop_back();
    } else if (event == Event::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) {
        raise(ErrorCode::Corrupt,
              fmt::format("{}: key {} occurs twice in one object", what_, quote(key)));
      }
      if (keys_.back().size() > kKeysPerObject) {
        raise(ErrorCode::Corrupt,
              fmt::format("{}: an object has more than {} keys", what_, kKeysPerObject));
      }
    }
    return true;
  }

 private:
  std::string_view what_;
  unsigned depth_limit_;
  std::vector<std::unordered_set<std::string>> keys_;
};

}  // namespace

Json parse_json(std::string_view text, std::string_view what, JsonLimits limits) {
  if (text.size() > limits.bytes) {
    raise(ErrorCode::Corrupt, fmt::format("{}: {} bytes of JSON exceed the limit of {}", what,
                                          text.size(), limits.bytes));
  }
  try {
    return Json::parse(text, Json::parser_callback_t(Strictness(what, limits.depth)));
  } catch (const Json::parse_error& error) {
    raise(ErrorCode::Corrupt, fmt::format("{}: not valid JSON at byte {}", what, error.byte));
  } catch (const Json::exception& error) {
    raise(ErrorCode::Corrupt, fmt::format("{}: not valid JSON: {}", what, error.what()));
  }
}

}  // namespace unishard
