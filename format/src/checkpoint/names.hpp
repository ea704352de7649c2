#pragma once
// Names of folders that are not checkpoints: `<tag>.partial-<save id>` is being written,
// `<tag>.removed-<save id>` is being deleted. Readers skip both.
#include <string>
#include <string_view>

namespace unishard::detail {

inline constexpr std::string_view kPartial = ".partial-";
inline constexpr std::string_view kRemoved = ".removed-";

/// `name` = tag + `mark` + 32 hexadecimal digits.
inline bool has_mark(std::string_view name, std::string_view mark) {
  if (name.size() <= mark.size() + 32) return false;
  const std::string_view id = name.substr(name.size() - 32);
  if (id.find_first_not_of("0123456789abcdef") != std::string_view::npos) return false;
  return name.substr(0, name.size() - 32).ends_with(mark);
}

inline bool is_leftover(std::string_view name) {
  return has_mark(name, kPartial) || has_mark(name, kRemoved);
}

inline std::string marked(std::string_view tag, std::string_view mark, std::string_view id) {
  return std::string(tag).append(mark).append(id);
}

}  // namespace unishard::detail
