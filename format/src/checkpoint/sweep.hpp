#pragma once
// Removes checkpoints and what dead writers left, but nothing that UniShard did not write. A file
// that another process removes at the same time counts as removed.
#include "unishard/format/storage.hpp"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace unishard::detail {

/// Returns true when the folder has a checkpoint, which need not be sound.
bool has_committed_tag(Storage& storage, const Path& folder);

/// Returns the name of the first entry in a checkpoint's folder that UniShard did not write, or
/// nullopt. Files that NFS keeps for programs that have them open (".nfs...") do not count.
std::optional<std::string> find_foreign_entry(Storage& storage, const Path& tag_folder);

/// Returns true when at least one file in the folder has a name that UniShard gives.
bool holds_own_file(Storage& storage, const Path& tag_folder);

/// Returns the entries of `folder` at which links in it end, each with the name of a link. Looks at
/// the real file system. A folder that cannot be listed has none.
std::map<std::string, std::string> find_links(const Path& folder);

/// Removes the files in `folder` that have names of UniShard's, then the folder if it is empty. A
/// missing folder is no error.
/// Throws: AlreadyExists, naming an entry that is left.
void remove_checkpoint(Storage& storage, const Path& folder);

/// Receives the name of an entry that could not be removed, and the reason.
using ReportKept = std::function<void(const std::string& name, const std::string& reason)>;

/// Removes the staging folders `<name>.partial-<id>` of dead writers.
/// Pre: the caller holds the lock of `name`. No other writer of `name` is then alive.
void remove_dead_staging(Storage& storage, const Path& folder, std::string_view name,
                         const ReportKept& report);

/// Removes what interrupted removals left, and staging folders whose lock is free; where no tag was
/// committed yet, and of other entries (partial files, lock files), those older than a day.
/// Throws: Error when the folder cannot be listed.
void sweep(Storage& storage, const Path& folder, const ReportKept& report);

}  // namespace unishard::detail
