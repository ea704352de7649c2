#pragma once
// How the processes of a job find each other in a folder that may hold what a crashed job of the
// same name left.
#include "team/team.hpp"
#include "team/team_folder.hpp"

namespace unishard::tools {

/// Waits up to options.meet_limit for everybody. Returns the folder that only these processes use;
/// it lies in options.folder. Throws PeerFailed naming who did not come, after removing what this
/// process put there.
TeamFolder meet(Storage& storage, const TeamOptions& options);

}  // namespace unishard::tools
