#pragma once
// Ranks as threads of one process: fast, and sufficient for tests in which no real process has to
// die.
#include "unishard/trainer/communicator.hpp"

#include <functional>
#include <mutex>

namespace unishard::test {

/// Calls body(communicator) on `size` threads at once and rethrows the first failure. Hold
/// construction_mutex() while constructing a model, because that draws from LibTorch's single
/// default generator.
void run_threads(std::uint32_t size, const std::function<void(trainer::Communicator&)>& body);

std::mutex& construction_mutex();

}  // namespace unishard::test
