#pragma once
// Ranks as threads of one process: quick, and good enough wherever no real process has to die.
#include "unishard/trainer/communicator.hpp"

#include <functional>
#include <mutex>

namespace unishard::test {

/// Calls body(communicator) on `size` threads at once and rethrows the first failure. Constructing
/// a model draws from LibTorch's one default generator: hold construction_mutex() meanwhile.
void run_threads(std::uint32_t size, const std::function<void(trainer::Communicator&)>& body);

std::mutex& construction_mutex();

}  // namespace unishard::test
