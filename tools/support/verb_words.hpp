#pragma once
// The words of the command line, from which completion scripts and the manual page are made.
#include <string>
#include <vector>

namespace unishard::tools {

struct OptionWords {
  std::vector<std::string> names;  ///< "--tag", "-t"; for a positional argument its name
  std::string value;               ///< what follows the name, such as "TEXT"; empty for a flag
  std::string description;
  bool is_positional = false;
};

struct VerbWords {
  std::string verb;
  std::string description;
  std::vector<OptionWords> options;
  std::string footer;  ///< notes and examples, in lines as they are to be shown
};

}  // namespace unishard::tools
