#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::tools {

struct SshOptions {
  std::uint16_t port = 0;    ///< 0: what ssh's configuration says
  std::string config = {};   ///< configuration file; empty: the user's
  double host_timeout = 30;  ///< seconds without an answer after which the connection is lost
};

/// Returns the words that run `command` on `host` through ssh. ssh asks nothing, shares no
/// connection and forwards no ports. Each word of the command is quoted for the remote shell.
/// Pre: parse_hostfile() has accepted the name.
std::vector<std::string> ssh_command(const SshOptions& options, const std::string& host,
                                     const std::vector<std::string>& command);

/// Returns `text` as one word for a POSIX shell.
std::string shell_quoted(std::string_view text);

/// Returns true for "localhost", its addresses, and this machine's own name.
bool is_this_host(const std::string& name);

}  // namespace unishard::tools
