#include "containers/plain_parts.hpp"

#include "containers/pickle_json.hpp"
#include "containers/plain_objects.hpp"
#include "core/key_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace unishard::converters::torch {
namespace {

constexpr std::string_view kModule = "torch.nn.Module";

std::string below(const std::string& path, std::string_view part) {
  return path.empty() ? std::string(part) : fmt::format("{}.{}", path, part);
}

Json tuple_of(Json items) { return {{"$type", "tuple"}, {"items", std::move(items)}}; }

bool is_module(const Json& value) {
  return value.is_object() && value.value("$type", Json()) == kModule;
}

class Plainer {
 public:
  Plainer(const std::function<bool(const std::string&)>& is_known, std::vector<std::string>& lines)
      : is_known_(is_known), lines_(lines) {}

  Json plain(Json value, const std::string& path) {
    if (value.is_array()) return all(std::move(value), path);
    if (!value.is_object() || value.contains("$tensor") || tensors_in(value).empty()) return value;
    if (!value.contains("$type")) {
      for (auto& [key, child] : value.items()) child = plain(std::move(child), below(path, key));
      return value;
    }
    if (is_module(value)) return is_all_known(value) ? module(value, path) : value;
    for (const char* part : {"args", "items"}) {
      if (value.contains(part)) value[part] = plain(std::move(value[part]), path);
    }
    if (value.contains("pairs")) plain_pairs(value["pairs"], path);
    return value["$type"] == "object" ? object(std::move(value), path) : value;
  }

 private:
  bool is_all_known(const Json& value) const {
    return std::ranges::all_of(tensors_in(value), is_known_);
  }

  Json all(Json list, const std::string& path) {
    for (std::size_t i = 0; i < list.size(); ++i)
      list[i] = plain(std::move(list[i]), below(path, std::to_string(i)));
    return list;
  }

  void plain_pairs(Json& pairs, const std::string& path) {
    for (Json& pair : pairs) {
      const Json& key = pair.at(0);
      const std::string name = key_text(key);
      pair.at(1) = plain(std::move(pair.at(1)), below(path, name));
    }
  }

  Json module(const Json& value, const std::string& path) {
    Json pairs = Json::array();
    add_members(value, {}, path, pairs);
    say(path, value, "its state dict");
    return {{"$type", "collections.OrderedDict"}, {"pairs", std::move(pairs)}};
  }

  /// Adds the members of a module under the names of its state dict.
  void add_members(const Json& value, const std::string& prefix, const std::string& path,
                   Json& pairs) {
    for (const auto& [key, member] : value.at("members").items()) {
      const std::string name = below(prefix, key);
      if (is_module(member)) {
        add_members(member, name, path, pairs);
      } else {
        pairs.push_back(Json::array({name, plain(member, below(path, name))}));
      }
    }
  }

  Json object(Json value, const std::string& path) {
    const std::string name = value.value("name", std::string());
    if (value.contains("state")) value["state"] = plain(std::move(value["state"]), path);
    if (makes_plain_object(name) || !is_all_known(value) || is_optimizer(value)) return value;
    say(path, value, "what it holds");
    return content_of(value);
  }

  /// Its parameters are the keys of its state.
  static bool is_optimizer(const Json& value) {
    return value.contains("state") && member(value["state"], "param_groups") != nullptr;
  }

  /// Returns the only part of an object, or the dict of its parts.
  static Json content_of(Json& value) {
    constexpr std::array<const char*, 4> kParts = {"args", "state", "items", "pairs"};
    Json parts = Json::object();
    for (const char* part : kParts) {
      const bool is_of_class = std::string_view(part) == "args" && value.contains("state") &&
                               tensors_in(value.value(part, Json())).empty();
      if (value.contains(part) && !is_of_class) parts[part] = std::move(value[part]);
    }
    if (parts.contains("args")) parts["args"] = tuple_of(std::move(parts["args"]));
    if (parts.contains("pairs"))
      parts["pairs"] = {{"$type", "builtins.dict"}, {"pairs", std::move(parts["pairs"])}};
    return parts.size() == 1 ? std::move(parts.front()) : parts;
  }

  void say(const std::string& path, const Json& value, std::string_view what) {
    lines_.push_back(fmt::format("{}: as an object of the class {}; {} is in its place",
                                 path.empty() ? "the object" : path,
                                 value.value("name", Json()).dump(), what));
  }

  const std::function<bool(const std::string&)>& is_known_;
  std::vector<std::string>& lines_;
};

}  // namespace

Json with_plain_parts(Json value, const std::string& path,
                      const std::function<bool(const std::string& tensor)>& is_known,
                      std::vector<std::string>& lines) {
  return Plainer(is_known, lines).plain(std::move(value), path);
}

}  // namespace unishard::converters::torch
