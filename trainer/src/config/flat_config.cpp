#include "config/flat_config.hpp"

#include "unishard/format/error.hpp"

#include "config/checked_config.hpp"
#include "config/switched_off.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace unishard::trainer::detail {
namespace {

constexpr std::array<std::string_view, 9> kNeoXKeys{
    "pipe_parallel_size",  "model_parallel_size", "num_layers",  "hidden_size",   "pos_emb",
    "num_attention_heads", "no_weight_tying",     "train_iters", "lr_decay_iters"};

bool is_comment(std::string_view name) {
  return name.starts_with('_') || name.starts_with("//") || name.starts_with('#') ||
         name == "comment" || name == "comments" || name == "$schema";
}

/// Returns the keys that tell a configuration of GPT-NeoX; empty when it is none.
std::vector<std::string> neox_keys(const Json& json) {
  std::vector<std::string> found;
  for (const auto& [name, value] : json.items()) {
    const bool is_known = std::ranges::find(kNeoXKeys, name) != kNeoXKeys.end();
    if (is_known || (name.find('-') != name.npos && !is_comment(name))) found.push_back(name);
  }
  return found.size() < 3 ? std::vector<std::string>{} : found;
}

class Flattening {
 public:
  Flattening(KeyProblems& problems, std::vector<std::string>& notes)
      : problems_(problems), notes_(notes) {}

  FlatConfig take(const Json& json) {
    const std::vector<std::string> neox = neox_keys(json);
    is_neox_ = !neox.empty();
    if (is_neox_) {
      problems_.add(fmt::format("this is a configuration of GPT-NeoX ({}, {}, {}, ...), which "
                                "describes a model and its data too",
                                neox[0], neox[1], neox[2]),
                    "keep DeepSpeed's keys (optimizer, zero_optimization, fp16, ...) and describe "
                    "the model with --model");
    }
    walk(json, "", "");
    add_contradictions();
    return std::move(flat_);
  }

 private:
  static std::string joined(const std::string& section, const std::string& name) {
    return section.empty() ? name : section + "." + name;
  }

  /// `written` is the path of the section in the file.
  void walk(const Json& object, const std::string& section, const std::string& written) {
    flat_.sections[section] = true;
    const bool skips_params = section == "optimizer" && has_refused_type(object);
    for (const auto& [name, value] : object.items()) {
      if (is_comment(name) || value.is_null() || (skips_params && name == "params")) continue;
      const std::string path = joined(section, name), in_file = joined(written, name);
      const auto old = std::ranges::find_if(old_config_keys(), [&](const OldKey& key) {
        return key.section == section && key.name == name;
      });
      if (old == old_config_keys().end()) {
        place(path, value, in_file);
      } else {
        place_old(*old, in_file, value);
      }
    }
  }

  bool has_refused_type(const Json& optimizer) {
    const auto type = optimizer.find("type");
    if (type == optimizer.end() || !type->is_string() || *type == "auto") return false;
    const std::string reason = refused_optimizer(type->get<std::string>());
    if (reason.empty()) return false;
    problems_.add(fmt::format("optimizer.type is {}: {}", shown_value(*type), reason),
                  "choose Adam, AdamW, Adagrad, Lamb, Lion, Muon or SGD");
    return true;
  }

  void place_old(const OldKey& old, const std::string& path, const Json& value) {
    if (old.if_true.empty()) {
      notes_.push_back(fmt::format("{}: is read as {}", path, old.now));
      return place(std::string(old.now), value, path);
    }
    if (value == "auto") return;
    if (value == false) {
      switched_off_.emplace_back(old.now, path);
      return;
    }
    if (value != true) {
      return problems_.add(fmt::format("{} is {}, not true or false", path, shown_value(value)),
                           "");
    }
    notes_.push_back(fmt::format("{}: is read as {} {}", path, old.now, old.if_true));
    place(std::string(old.now), Json::parse(old.if_true), path);
  }

  /// An old switch that is off contradicts what replaced it where that is on.
  void add_contradictions() {
    for (const auto& [now, path] : switched_off_) {
      auto found = flat_.values.find(now);
      if (found == flat_.values.end()) found = flat_.values.find(now + ".device");
      if (found == flat_.values.end() || is_switched_off(now, found->second)) continue;
      problems_.add(fmt::format("{} is false, but {} is {}", path, flat_.written.at(found->first),
                                shown_value(found->second)),
                    fmt::format("keep {}", now));
    }
  }

  /// `written` is the path in the file.
  void place(const std::string& path, const Json& value, const std::string& written) {
    const ConfigKey* key = find_config_key(path);
    if (!key) return add_unknown(path);
    if (key->type != KeyType::Section) return place_leaf(path, value, written);
    if (value == "auto") return;
    if (path == "zero_optimization" && value.is_boolean())
      return place_leaf(path + ".stage", value.get<bool>() ? 1 : 0, written);
    if (!value.is_object()) return problems_.add(fmt::format("{} is not an object", written), "");
    walk(value, path, written);
  }

  void place_leaf(const std::string& path, const Json& value, const std::string& written) {
    const auto found = flat_.values.find(path);
    if (found != flat_.values.end() && found->second != value && found->second != "auto") {
      const std::string& earlier = flat_.written.at(path);
      return problems_.add(
          fmt::format("{} is {}, but {} is {}{}", written, shown_value(value), earlier,
                      shown_value(found->second), written == earlier ? ", in another place" : ""),
          fmt::format("keep {}", path));
    }
    flat_.set(path, value);
    flat_.written[path] = written;
  }

  void add_unknown(const std::string& path) {
    if (is_neox_ && path.find('.') == path.npos) return;  // said in one sentence
    constexpr std::size_t kShown = 200;
    if (path.size() > kShown)
      return problems_.add("unknown key " + path.substr(0, kShown) + "...", "remove it");
    const std::string near = nearest_config_key(path);
    problems_.add("unknown key " + path, near.empty() ? "remove it" : "did you mean " + near + "?");
  }

  KeyProblems& problems_;
  std::vector<std::string>& notes_;
  FlatConfig flat_;
  std::vector<std::pair<std::string, std::string>> switched_off_;  ///< today's path, path in file
  bool is_neox_ = false;
};

}  // namespace

void FlatConfig::set(const std::string& path, const Json& value) {
  if (!values.contains(path)) order.push_back(path);
  values[path] = value;
}

FlatConfig flatten_config(const Json& json, KeyProblems& problems,
                          std::vector<std::string>& notes) {
  if (!json.is_object())
    raise(ErrorCode::InvalidArgument, "configuration: the file is not an object");
  return Flattening(problems, notes).take(json);
}

}  // namespace unishard::trainer::detail
