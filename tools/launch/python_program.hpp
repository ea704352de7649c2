#pragma once
// The words that start a rank's program, as DeepSpeed's launcher and torchrun choose them.
#include <cstdint>
#include <string>
#include <vector>

namespace unishard::tools {

enum class ProgramKind : std::uint8_t {
  ByName,  ///< what ends in .py is a Python script, everything else a program
  Module,  ///< a Python module, as with `python3 -m`
  Direct,  ///< a program, whatever its name
};

struct ProgramWords {
  std::vector<std::string> command;  ///< program, looked up in PATH, and its arguments
  std::size_t own = 0;               ///< words of them that the program's arguments follow
};

/// Returns the words for PROGRAM and its arguments. Python's output is not buffered.
ProgramWords program_words(std::vector<std::string> command, ProgramKind kind);

}  // namespace unishard::tools
