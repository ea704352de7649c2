#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unishard::tools {

/// Names of this host's network interfaces and their addresses, without loopback: first IPv4, then
/// IPv6 that is not link-local.
/// Throws: Io.
std::vector<std::pair<std::string, std::string>> interface_addresses();

/// Returns the address under which this host was reached through ssh, from SSH_CONNECTION; empty
/// when it was not, or through loopback. `connection` is the variable's value.
std::string ssh_address(std::string_view connection);

/// Returns a port on which no process listens.
/// Throws: Io.
std::uint16_t free_port();

}  // namespace unishard::tools
