#pragma once
// Shell completion scripts from the list of verbs and their options.
// Thread safety: pure functions.
#include <string>
#include <vector>

namespace unishard::tools {

struct VerbWords {
  std::string verb;
  std::string description;
  std::vector<std::string> options;  ///< "--tag", "-t"
};

std::string bash_completion(const std::vector<VerbWords>& verbs);
std::string zsh_completion(const std::vector<VerbWords>& verbs);

}  // namespace unishard::tools
