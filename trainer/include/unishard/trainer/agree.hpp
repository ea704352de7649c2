#pragma once
// Agreement of all ranks on the outcome of a phase: afterwards either all ranks continue, or all
// throw.
#include "unishard/trainer/communicator.hpp"

#include <functional>
#include <string>

namespace unishard::trainer {

/// Runs `body` on this rank and exchanges the outcome. Collective.
/// Throws: what `body` threw; else PeerFailed, naming the first rank whose body threw and its
/// message. A PeerFailed from `body` is rethrown without an exchange, because the group is then
/// unusable.
void agree(Communicator& communicator, const std::string& what, const std::function<void()>& body);

}  // namespace unishard::trainer
