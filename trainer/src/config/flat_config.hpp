#pragma once
// The leaves of a configuration file under today's paths.
#include "unishard/trainer/config_keys.hpp"

#include "config/key_problems.hpp"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::trainer::detail {

struct FlatConfig {
  std::vector<std::string> order;              ///< paths of `values`, in the order of the file
  std::map<std::string, Json> values;          ///< by path
  std::map<std::string, std::string> written;  ///< the paths in the file, by today's path
  std::map<std::string, bool> sections;

  void set(const std::string& path, const Json& value);
};

/// Leaves out comments and null members, and replaces old names. Adds unknown keys, and values that
/// contradict each other, to `problems`, and a line for each old name to `notes`.
/// Throws: InvalidArgument when `json` is no object.
FlatConfig flatten_config(const Json& json, KeyProblems& problems, std::vector<std::string>& notes);

/// Returns why an optimizer is refused; empty when it is built.
std::string refused_optimizer(std::string_view type);

}  // namespace unishard::trainer::detail
