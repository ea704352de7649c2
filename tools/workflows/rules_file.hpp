#pragma once
// The file of rules that `--save-rules` writes, and that `--rename @FILE` and `--merge-rules FILE`
// read: new names for parameters, and how tensor-parallel ranks cut them.
#include "unishard/format/json.hpp"
#include "unishard/format/storage.hpp"

#include "workflows/rename_rules.hpp"

#include <string>
#include <vector>

namespace unishard::tools {

/// Upper bound on the bytes of a file of rules.
inline constexpr std::size_t kRulesBytes = std::size_t{16} << 20;

struct Rules {
  std::string layout = {};  ///< of name_layouts(), for one that changes more than names; else empty
  std::vector<RenameRule> renames = {};  ///< in their order, behind those of the layout
  Json cuts = {};                        ///< with the keys of universal_checkpoint_info; null: none
};

/// Reads a file of rules, or what earlier versions had instead of it: the object of `cuts` alone,
/// or "FROM=TO" on each line. `path` may be what a shell makes of <(...). `option` begins messages.
/// Throws: InvalidArgument, naming file and key.
Rules read_rules(const Path& path, std::string_view option);

/// Writes a file of rules. Replaces nothing.
/// Throws: AlreadyExists; what Storage throws.
void save_rules(Storage& storage, const Path& file, const Rules& rules);

/// Returns the file's content. `comment` is for people; empty: none.
Json rules_json(const Rules& rules, const std::vector<std::string>& comment = {});

/// Returns a JSON Schema (draft 2020-12) of the file.
Json rules_schema();

}  // namespace unishard::tools
