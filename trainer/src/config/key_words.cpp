// What the table says, in sentences: for messages, `unishard config --explain` and CONFIG.md.
#include "unishard/format/error.hpp"
#include "unishard/trainer/config_keys.hpp"

#include "config/key_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace unishard::trainer {
namespace {

constexpr std::string_view kTrainer = "the Hugging Face Trainer's default";

std::string listed(std::string_view choices) {
  std::string text;
  for (std::size_t begin = 0; begin < choices.size();) {
    const std::size_t end = std::min(choices.find(' ', begin), choices.size());
    const bool is_last = end == choices.size();
    text += begin == 0 ? "" : is_last ? " or " : ", ";
    text += fmt::format("\"{}\"", choices.substr(begin, end - begin));
    begin = end + 1;
  }
  return text;
}

/// Returns " from A to B", ", A or more" or nothing.
std::string range_text(const ConfigKey& key) {
  const bool has_most = key.most < detail::kCountMost;
  if (!std::isfinite(key.least)) return "";
  if (has_most) return fmt::format(" from {:g} to {:.0f}", key.least, key.most);
  if (key.type == KeyType::Integer && key.most == detail::kCountMost)
    return fmt::format(" from {:g} to 2^53", key.least);
  return key.least == 0 ? ", zero or more" : fmt::format(", {:g} or more", key.least);
}

std::string heading(const ConfigKey& key) {
  const std::string type = values_text(key);
  const std::string initial = key.initial.empty() ? "" : fmt::format(" (default: {})", key.initial);
  return type.empty() ? path_of(key) : fmt::format("{}: {}{}", path_of(key), type, initial);
}

std::string use_text(const ConfigKey& key) {
  if (key.use == KeyUse::Refused)
    return fmt::format("Refused unless it is {}: {}.",
                       key.initial == "true" ? "true" : "switched off", key.text);
  if (key.use == KeyUse::Noted) return fmt::format("Accepted; {}.", key.text);
  return std::string(key.text);
}

}  // namespace

std::string values_text(const ConfigKey& key) {
  switch (key.type) {
    case KeyType::Boolean:
      return "true or false";
    case KeyType::Integer:
      return "a whole number" + range_text(key);
    case KeyType::Number:
      return "a number" + range_text(key);
    case KeyType::Text:
      return key.choices.empty() ? "a string" : listed(key.choices);
    case KeyType::Pair:
      return "a pair of numbers from 0 up to 1";
    case KeyType::Section:
      return "an object";
    case KeyType::Any:
      break;
  }
  return "";
}

std::string automatic_text(const ConfigKey& key) {
  const std::string flag = key.flag.empty() ? "" : fmt::format("{}, else ", key.flag);
  switch (key.automatic) {
    case AutoRule::Default:
      return "";
    case AutoRule::Value:
      return fmt::format("\"auto\": {}{}, {}.", flag, key.auto_value, kTrainer);
    case AutoRule::RestOfBatch:
      if (key.auto_value.empty())
        return fmt::format("\"auto\": {}what follows from the other sizes.", flag);
      return fmt::format("\"auto\": {}what follows from train_batch_size, else {}, {}.", flag,
                         key.auto_value, kTrainer);
    case AutoRule::LearningRate:
      return "\"auto\": optimizer.params.lr.";
    case AutoRule::HiddenSquare:
      return "\"auto\": the square of the model's hidden size.";
    case AutoRule::HiddenSquare0_9:
      return "\"auto\": 0.9 times the square of the model's hidden size.";
    case AutoRule::TenHidden:
      return "\"auto\": ten times the model's hidden size.";
    case AutoRule::Steps:
      return "\"auto\": the steps of the run.";
  }
  return "";
}

std::string explain_config_key(std::string_view path) {
  std::string text;
  const auto say = [&text](const ConfigKey& key) {
    text += fmt::format("{}\n  {}\n", heading(key), use_text(key));
    if (!key.of.empty()) text += fmt::format("  Used by: {}.\n", key.of);
    if (const std::string automatic = automatic_text(key); !automatic.empty())
      text += fmt::format("  {}\n", automatic);
    if (!key.flag.empty()) text += fmt::format("  Option of train_gpt: {}\n", key.flag);
    for (const OldKey& old : old_config_keys()) {
      if (old.now != path_of(key)) continue;
      const std::string_view dot = old.section.empty() ? "" : ".";
      text += fmt::format("  Also read: {}{}{}\n", old.section, dot, old.name);
    }
  };
  for (const ConfigKey& key : config_keys())
    if (path_of(key) == path || key.section == path) say(key);
  if (!text.empty()) return text;
  for (const ConfigKey& key : config_keys())  // a name without its section
    if (key.name == path) say(key);
  for (const OldKey& old : old_config_keys())
    if (text.empty() && (old.name == path || fmt::format("{}.{}", old.section, old.name) == path))
      return explain_config_key(old.now);
  if (!text.empty()) return text;
  const std::string near = nearest_config_key(path);
  raise(ErrorCode::InvalidArgument, fmt::format("the configuration has no key {}", quote(path)),
        near.empty() ? "unishard config --keys lists them" : "did you mean " + near + "?");
}

}  // namespace unishard::trainer
