#pragma once
// Names of what is not (yet, or any longer) a result: `<name>.partial-<save id>` is being written,
// `<name>.removed-<save id>` is being deleted. Readers skip both. `.<name>.lock` belongs to the
// process that writes `<name>`. This is the one place that knows the rules.
#include <string>
#include <string_view>

namespace unishard {

inline constexpr std::string_view kPartialMark = ".partial-";
inline constexpr std::string_view kRemovedMark = ".removed-";
inline constexpr std::string_view kLockSuffix = ".lock";
inline constexpr std::size_t kSaveIdDigits = 32;

/// 32 lower-case hexadecimal digits from the system's random source. Throws Io when it fails.
std::string new_save_id();

/// True for a text as new_save_id() returns it.
inline bool is_save_id(std::string_view text) {
  return text.size() == kSaveIdDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// True when `name` is something + `mark` + a save id.
inline bool has_mark(std::string_view name, std::string_view mark) {
  if (name.size() <= mark.size() + kSaveIdDigits) return false;
  return is_save_id(name.substr(name.size() - kSaveIdDigits)) &&
         name.substr(0, name.size() - kSaveIdDigits).ends_with(mark);
}

inline bool is_partial_name(std::string_view name) { return has_mark(name, kPartialMark); }
inline bool is_leftover(std::string_view name) {
  return is_partial_name(name) || has_mark(name, kRemovedMark);
}

inline std::string marked_name(std::string_view name, std::string_view mark, std::string_view id) {
  return std::string(name).append(mark).append(id);
}
/// The name that a marked one was made from. Pre: has_mark(name, mark).
inline std::string_view unmarked_name(std::string_view name, std::string_view mark) {
  return name.substr(0, name.size() - mark.size() - kSaveIdDigits);
}

/// The lock file of the output `name`, in the same folder.
inline std::string lock_name(std::string_view name) {
  return std::string(".").append(name).append(kLockSuffix);
}

}  // namespace unishard
