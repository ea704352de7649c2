#pragma once
// Names of what is not (yet, or any longer) a result: `<name>.partial-<save id>` is being written,
// `<name>.removed-<save id>` is being deleted. Readers skip both. The one place that knows the
// rule.
#include <string>
#include <string_view>

namespace unishard {

inline constexpr std::string_view kPartialMark = ".partial-";
inline constexpr std::string_view kRemovedMark = ".removed-";

/// 32 lower-case hexadecimal digits, as commit.hpp's new_save_id() gives.
inline bool is_save_id(std::string_view text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// `name` = something + `mark` + a save id.
inline bool has_mark(std::string_view name, std::string_view mark) {
  if (name.size() <= mark.size() + 32) return false;
  return is_save_id(name.substr(name.size() - 32)) &&
         name.substr(0, name.size() - 32).ends_with(mark);
}

inline bool is_partial_name(std::string_view name) { return has_mark(name, kPartialMark); }
inline bool is_leftover(std::string_view name) {
  return is_partial_name(name) || has_mark(name, kRemovedMark);
}

inline std::string marked_name(std::string_view name, std::string_view mark, std::string_view id) {
  return std::string(name).append(mark).append(id);
}

}  // namespace unishard
