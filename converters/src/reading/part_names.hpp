#pragma once
// The table of the names that programs give to files and folders of which several make one
// checkpoint.
#include "reading/completeness.hpp"

#include <string_view>

namespace unishard::converters {

/// One kind of name.
struct PartPattern {
  /// What a name looks like. `*` is any text, `<n>` the number of a part, `<of>` how many parts
  /// there are, `<_>` a number that is the same for all parts; everything else is itself.
  std::string_view pattern;
  PartKind kind = PartKind::Shards;
  std::string_view writer;
};

/// Returns the patterns in the order in which they are tried.
std::span<const PartPattern> part_patterns();

/// Returns what the pattern finds in a name; nullopt when it does not fit.
std::optional<PartName> match(const PartPattern& pattern, std::string_view name);

}  // namespace unishard::converters
