#pragma once
// What a source says of its files beside the catalog, as lines.
#include "unishard/converters/source.hpp"

#include <string>
#include <utility>
#include <vector>

namespace unishard::converters {

/// Returns the lines of losses() and then notes().
inline std::vector<std::string> notes_of(const Source& source) {
  std::vector<std::string> lines = lines_of(source.losses());
  for (std::string& note : source.notes()) lines.push_back(std::move(note));
  return lines;
}

}  // namespace unishard::converters
