#pragma once
// Rendezvous: the processes of a job find each other in a folder, which may still hold files of a
// crashed job with the same name.
#include "team/team.hpp"
#include "team/team_folder.hpp"

namespace unishard::tools {

/// Waits for all processes, at most options.meet_limit. Returns a folder in options.folder that
/// only these processes use.
/// Throws: PeerFailed, naming the processes that did not arrive, after removing the files of this
/// process.
TeamFolder meet(Storage& storage, const TeamOptions& options);

}  // namespace unishard::tools
