#pragma once
// A phase that can fail on one rank ends with all ranks knowing: either all go on, or all throw.
#include "unishard/trainer/communicator.hpp"

#include <functional>
#include <string>

namespace unishard::trainer {

/// Runs `body` here and exchanges the outcome. Throws what `body` threw, or PeerFailed naming the
/// first rank whose body threw and its message. A PeerFailed from `body` is rethrown at once: the
/// group is unusable then.
void agree(Communicator& communicator, const std::string& what, const std::function<void()>& body);

}  // namespace unishard::trainer
