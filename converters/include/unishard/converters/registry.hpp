#pragma once
// The formats that this build knows, in the order in which a path is tried. An explicit table;
// values.
#include <string_view>
#include <vector>

namespace unishard::converters {

struct FormatEntry {
  std::string_view name;         ///< what Source::format() and Probe::format say
  std::string_view description;  ///< one line
  bool readable = false;
  bool writable = false;
};

std::vector<FormatEntry> known_formats();

}  // namespace unishard::converters
