#pragma once
// Makes text from files fit for messages. A name may hold bytes that move the cursor, set the
// terminal's title or reverse the order of text, which printable() escapes; and there may be many.
// Thread safety: pure functions.
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace unishard {

/// Returns `text` as one line that is safe to print. Control characters (C0, DEL, C1), marks that
/// change the direction of text (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069) and
/// bytes that are not UTF-8 are escaped as \x1b or \u202e. Everything else is unchanged, so a
/// second call changes nothing.
std::string printable(std::string_view text);

/// Does the same, but keeps newlines.
std::string printable_lines(std::string_view text);

/// Does the same to the text of a JSON document without changing its meaning.
/// Pre: `json` is valid JSON.
std::string printable_json(std::string_view json);

/// Upper bound on the names that first_names() lists.
inline constexpr std::size_t kFirstNames = 8;
/// Returns "a, b, c" of the first names, and ", ..." behind them where there are more.
std::string first_names(std::span<const std::string> names);

}  // namespace unishard
