#include "launch/ssh_command.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace unishard::tools {

std::string shell_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::vector<std::string> ssh_command(const SshOptions& options, const std::string& host,
                                     const std::vector<std::string>& command) {
  // ssh gives up after three unanswered questions, each an interval after the one before.
  const int interval = std::max(1, static_cast<int>(std::ceil(options.host_timeout / 3)));
  std::vector<std::string> words = {"ssh", "-T", "-o", "BatchMode=yes"};
  const std::string alive = fmt::format("ServerAliveInterval={}", interval);
  for (const std::string& option :
       {std::string("ConnectTimeout=10"), alive, std::string("ServerAliveCountMax=3"),
        std::string("ControlMaster=no"), std::string("ControlPath=none"),
        std::string("ClearAllForwardings=yes"), std::string("RequestTTY=no")}) {
    words.insert(words.end(), {"-o", option});
  }
  if (!options.config.empty()) words.insert(words.end(), {"-F", options.config});
  if (options.port != 0) words.insert(words.end(), {"-p", std::to_string(options.port)});
  std::string line = "exec";
  for (const std::string& word : command) line += " " + shell_quoted(word);
  words.insert(words.end(), {"--", host, line});
  return words;
}

bool is_this_host(const std::string& name) {
  if (name == "localhost" || name == "127.0.0.1" || name == "::1") return true;
  std::array<char, 256> own{};
  return ::gethostname(own.data(), own.size() - 1) == 0 && name == own.data();
}

}  // namespace unishard::tools
