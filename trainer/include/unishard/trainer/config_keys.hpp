#pragma once
// The table of the configuration's keys. It is the only list of them: the parser, `unishard
// config`, train_gpt --print-config and trainer/CONFIG.md come from it.
// Thread safety: values and pure functions.
#include "unishard/trainer/config.hpp"

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::trainer {

enum class KeyType : std::uint8_t {
  Boolean,
  Integer,  ///< may be written like 5e8
  Number,
  Text,
  Pair,     ///< two numbers
  Section,  ///< an object whose keys are in the table
  Any,      ///< an object or a list whose content is not in the table
};

enum class KeyUse : std::uint8_t {
  Read,     ///< changes what the run does
  Noted,    ///< accepted; a value that is not `idle` gets a line that says what happens instead
  Refused,  ///< accepted only when it is switched off
};

/// What "auto" becomes when no flag gives the value.
enum class AutoRule : std::uint8_t {
  Default,          ///< as if the key were not given
  Value,            ///< `auto_value`, the Hugging Face Trainer's default
  RestOfBatch,      ///< `auto_value`, or what follows from the other sizes of the batch
  LearningRate,     ///< optimizer.params.lr
  HiddenSquare,     ///< the square of the model's hidden size
  HiddenSquare0_9,  ///< 0.9 times that
  TenHidden,        ///< ten times the hidden size
  Steps,            ///< the steps of the run
};

struct ConfigKey {
  std::string_view section = {};  ///< its path; empty for keys at the top level
  std::string_view name = {};
  KeyType type = KeyType::Any;
  /// JSON of the default; empty: there is none, and the key's absence has a meaning of its own.
  std::string_view initial = {};
  KeyUse use = KeyUse::Read;
  std::string_view text = {};  ///< what it does, what happens instead, or why it is refused
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  std::string_view choices = {};  ///< the texts that it may be, separated by spaces
  std::string_view of = {};       ///< the optimizers or schedules that use it; empty: all
  AutoRule automatic = AutoRule::Default;
  std::string_view auto_value = {};  ///< JSON
  std::string_view flag = {};        ///< of train_gpt
  /// Refused and Noted: JSON of a value, beside the default and what is switched off, that means
  /// nothing.
  std::string_view idle = {};
};

/// A name that older versions of DeepSpeed had, or another place of a key.
struct OldKey {
  std::string_view section;
  std::string_view name;
  std::string_view now;  ///< the path of the key that replaced it
  /// How a value is read: empty as it is; otherwise true means this JSON, and false nothing.
  std::string_view if_true = {};
};

/// Returns all keys, section by section, in the order of CONFIG.md.
std::span<const ConfigKey> config_keys();
std::span<const OldKey> old_config_keys();

std::string path_of(const ConfigKey& key);
/// Returns the key with the path; nullptr when there is none.
const ConfigKey* find_config_key(std::string_view path);
/// Returns the known key that `path` was perhaps meant to be; empty when none is near.
std::string nearest_config_key(std::string_view path);

/// Returns a sentence on what "auto" becomes; empty when it means no more than the default.
std::string automatic_text(const ConfigKey& key);
/// Returns what values the key takes, for example "a whole number from 0 to 3".
std::string values_text(const ConfigKey& key);

/// One value of a configuration.
struct ConfigValue {
  std::string path;
  Json value;
  Origin origin = Origin::Default;
  std::string from;  ///< the origin in words
};

/// Returns every value that changes what a run does, defaults included.
std::vector<ConfigValue> config_values(const Config& config);

/// Returns a JSON Schema (draft 2020-12) of a configuration file.
Json config_schema();
/// Returns all that the table says of a key, in lines.
/// Throws: InvalidArgument, naming the nearest key, when there is none with this path or name.
std::string explain_config_key(std::string_view path);
/// Returns the text of trainer/CONFIG.md.
std::string config_page();

}  // namespace unishard::trainer
