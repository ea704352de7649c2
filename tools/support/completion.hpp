#pragma once
// Shell completion scripts from the list of verbs and their options.
// Thread safety: pure functions.
#include "support/verb_words.hpp"

namespace unishard::tools {

std::string bash_completion(const std::vector<VerbWords>& verbs);
std::string zsh_completion(const std::vector<VerbWords>& verbs);
std::string fish_completion(const std::vector<VerbWords>& verbs);

}  // namespace unishard::tools
