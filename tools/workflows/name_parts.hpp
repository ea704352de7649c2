#pragma once
// A parameter's name as text and numbers, so that the same parameter of numbered layers is one row:
// "h.3.attn.weight" is {"h.", ".attn.weight"} and {3}.
// Thread safety: values and pure functions.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::tools {

struct NameParts {
  std::vector<std::string> texts;      ///< one more than `numbers`; equal for alike parameters
  std::vector<std::uint32_t> numbers;  ///< the parts between dots that are numbers

  /// Returns the number of the outermost numbered layer.
  std::optional<std::uint32_t> layer() const;
};

/// Returns whether a name matches one of the shell patterns; true without patterns.
bool is_wanted(const std::string& name, const std::vector<std::string>& patterns);

/// Splits a name. A number with leading zeros or more than six digits counts as text, so the name
/// follows from the parts.
NameParts split_name(std::string_view name);

}  // namespace unishard::tools
