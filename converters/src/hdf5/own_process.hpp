#pragma once
// libhdf5 crashes on forged files and on some damaged ones. What it does with a file of anybody's
// it therefore does in a process of its own, which can die without harm.
#include <functional>
#include <string>

namespace unishard::converters::hdf5 {

/// Forks, calls `work` under detail::Hdf5Lock in the child and returns what it returned. Throws the
/// Error that it threw, and Corrupt naming `what` when the process died or used 5 minutes of
/// processor time. `work` must not take that lock itself. Thread-safe.
std::string in_own_process(const std::string& what, const std::function<std::string()>& work);

}  // namespace unishard::converters::hdf5
