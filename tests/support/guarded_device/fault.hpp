#pragma once
// Names the device memory that the host touched.
#include <functional>
#include <string>

namespace unishard::test::guarded {

/// From now on, an access of the host to device memory ends the process with a message on stderr.
void install_fault_handler();

/// Returns the message of the first access of the host to device memory in `body`, or "". Ends
/// `body` there; destructors of its variables do not run.
std::string host_access(const std::function<void()>& body);

}  // namespace unishard::test::guarded
