#pragma once
// Names of files and folders that are not results. `<name>.partial-<save id>` is being written,
// `<name>.removed-<save id>` is being deleted; readers skip both. `.<name>.lock` belongs to the
// process that writes `<name>`. No other file knows these rules.
// Thread safety: pure functions, new_save_id() included.
#include <string>
#include <string_view>

namespace unishard {

inline constexpr std::string_view kPartialMark = ".partial-";
inline constexpr std::string_view kRemovedMark = ".removed-";
inline constexpr std::string_view kLockSuffix = ".lock";
inline constexpr std::size_t kSaveIdDigits = 32;

/// Returns 32 lower-case hexadecimal digits from the system's random source.
/// Throws: Io when that source fails.
std::string new_save_id();

/// Returns true for a text of the form that new_save_id() returns.
inline bool is_save_id(std::string_view text) {
  return text.size() == kSaveIdDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// Returns true when `name` is a non-empty text followed by `mark` and a save id.
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
/// Returns the name from which marked_name() made `name`.
/// Pre: has_mark(name, mark).
inline std::string_view unmarked_name(std::string_view name, std::string_view mark) {
  return name.substr(0, name.size() - mark.size() - kSaveIdDigits);
}

/// Returns true for a name that lock_name() returns.
inline bool is_lock_name(std::string_view name) {
  return name.size() > 1 + kLockSuffix.size() && name.starts_with('.') &&
         name.ends_with(kLockSuffix);
}
/// Returns the name of the lock file of the output `name`; it lies in the same folder.
inline std::string lock_name(std::string_view name) {
  return std::string(".").append(name).append(kLockSuffix);
}

}  // namespace unishard
