#pragma once
// Packs several texts of any bytes into one.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::tools {

std::string pack(const std::vector<std::string>& texts);
/// Returns the texts that pack() was given.
/// Throws: Corrupt, naming `where`, when `text` is not `count` packed texts.
std::vector<std::string> unpack(std::string_view text, std::size_t count, std::string_view where);

}  // namespace unishard::tools
