#pragma once
// A configuration after the checks that need only the table of keys: comments are left out, old
// names are today's, "auto" has a value, types and ranges are right, and nothing is on that is not
// built.
#include "unishard/trainer/config_keys.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::trainer::detail {

class CheckedConfig {
 public:
  /// Throws: InvalidArgument, naming every key that is unknown, wrong or refused.
  CheckedConfig(const Json& json, const ConfigInputs& inputs);

  /// Return the value of a key, or its default, which must exist.
  std::int64_t integer(std::string_view path) const;
  double number(std::string_view path) const;
  bool boolean(std::string_view path) const;
  std::string text(std::string_view path) const;
  /// Return nullopt when the key is not given.
  std::optional<std::int64_t> given_integer(std::string_view path) const;
  std::optional<double> given_number(std::string_view path) const;
  std::optional<bool> given_boolean(std::string_view path) const;
  std::optional<std::string> given_text(std::string_view path) const;
  /// Returns nullptr when the key is not given.
  const Json* find(std::string_view path) const;
  bool has_section(std::string_view path) const { return sections_.contains(std::string(path)); }

  /// Throws: InvalidArgument "PATH is VALUE, not EXPECTED".
  [[noreturn]] void refuse(std::string_view path, std::string_view expected) const;

  /// Returns all values as the objects of a file.
  Json source() const;
  const std::map<std::string, Origin>& origins() const { return origins_; }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  Json value_of(std::string_view path) const;

  std::vector<std::string> order_;      ///< paths in the order of the file
  std::map<std::string, Json> values_;  ///< by path
  std::map<std::string, Origin> origins_;
  std::map<std::string, bool> sections_;  ///< those that the file has
  std::vector<std::string> notes_;
};

/// Returns the whole number that a JSON value means; nullopt when there is none below 2^63.
std::optional<std::int64_t> whole_number(const Json& value);

/// Returns the value as it is shown in a message: escaped, and cut when it is long.
std::string shown_value(const Json& value);

}  // namespace unishard::trainer::detail
