#pragma once
// Text from files and other people on its way to a terminal. A name may hold bytes that move the
// cursor, set the title or show text in another order than it is in: none of them gets out.
#include <string>
#include <string_view>

namespace unishard {

/// `text` as one harmless line: control characters (C0, DEL, C1), marks that change the direction
/// of text (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069) and bytes that are not
/// UTF-8 become \x1b, \u202e. All else stays as it is, so that a second call changes nothing.
std::string printable(std::string_view text);

/// printable() for text of several lines: newlines stay.
std::string printable_lines(std::string_view text);

/// The same for the text of a JSON document, whose meaning does not change. Pre: valid JSON.
std::string printable_json(std::string_view json);

}  // namespace unishard
