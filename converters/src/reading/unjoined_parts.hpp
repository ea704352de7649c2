#pragma once
// Folders of parts that no rule in the files puts together: what they are and what helps, in words.
#include "unishard/format/storage.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters {

/// Parts that are never put together without rules of the user's.
struct UnjoinedParts {
  std::string_view what;   ///< begins what is said of them
  std::string_view files;  ///< `*` is any text
};
std::vector<UnjoinedParts> unjoined_parts();

/// Returns what is said of a folder that holds the parts of one model which UniShard does not put
/// together: what it is, how many parts there are, and what helps. Looks at names in the folder, in
/// those within it and in those within them. Returns nullopt for every other folder.
std::optional<std::string> describe_unjoined_parts(Storage& storage, const Path& folder);

}  // namespace unishard::converters
