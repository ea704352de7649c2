#pragma once
// Removing checkpoints and what dead writers left, without touching what UniShard did not write.
// Other processes may remove the same things at the same time: what is gone is done.
#include "unishard/format/storage.hpp"

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace unishard::detail {

/// The name of the first entry of a checkpoint's folder that UniShard did not write; nothing when
/// all are its own. Files that NFS keeps for programs that have them open (".nfs...") do not count.
std::optional<std::string> find_foreign_entry(Storage& storage, const Path& tag_folder);

/// True when at least one file in the folder has a name that UniShard gives.
bool holds_own_file(Storage& storage, const Path& tag_folder);

/// Removes the files that UniShard writes into a checkpoint's folder, then the folder if it is
/// empty; otherwise throws AlreadyExists naming what is left. Missing is fine.
void remove_checkpoint(Storage& storage, const Path& folder);

/// Receives the name of what could not be removed and why.
using ReportKept = std::function<void(const std::string& name, const std::string& reason)>;

/// Removes `<name>.partial-<id>` of every dead writer of `name`. Pre: the caller has the lock of
/// `name`, so that no living writer has one, or has just renamed its own.
void remove_dead_staging(Storage& storage, const Path& folder, std::string_view name,
                         const ReportKept& report);

/// Removes what interrupted removals left, staging of any name that is older than a day and whose
/// lock is free, and lock files that old. Throws only when the folder cannot be listed.
void sweep(Storage& storage, const Path& folder, const ReportKept& report);

}  // namespace unishard::detail
