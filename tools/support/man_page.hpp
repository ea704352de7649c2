#pragma once
// The manual page from the list of verbs and their options.
// Thread safety: pure function.
#include "support/verb_words.hpp"

namespace unishard::tools {

/// Returns the page unishard(1) as troff source for the macros of man(7). `summary` describes the
/// program in a few words; `notes` is shown, line by line, after the verbs.
std::string man_page(const std::string& version, const std::string& summary,
                     const std::vector<VerbWords>& verbs, const std::string& notes);

}  // namespace unishard::tools
