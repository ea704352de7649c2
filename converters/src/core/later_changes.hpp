#pragma once
// What another program has changed in a file that holds an embedded catalog. A script that loads
// such a file, trains on and saves the dict again keeps the text of the catalog, whose settings,
// counters and values are then those of the earlier save.
#include "unishard/format/catalog.hpp"

#include <set>
#include <string>
#include <vector>

namespace unishard::converters {

/// What a file says beside its embedded catalog.
struct FileScalars {
  Json groups;             ///< "param_groups" of the optimizer; null where they are not known
  std::set<double> steps;  ///< of all parameters; empty where they are not known
  Json values;             ///< values by key; null where they are not known
};

/// Returns what the catalog says that was read from the same file as if it held no text, without
/// its client state.
FileScalars scalars_of(const Catalog& without_text);

/// Gives the catalog, which was restored from the text, the settings, steps and values that the
/// file has now. Steps that differ between parameters stay as they are. Returns remarks on both.
std::vector<std::string> take_later_changes(const FileScalars& file, Catalog& catalog);

}  // namespace unishard::converters
