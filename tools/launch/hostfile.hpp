#pragma once
// The hosts of a job and how many ranks each takes, in DeepSpeed's words: a hostfile lists them,
// and filters choose among them.
// Thread safety: values and pure functions.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::tools {

inline constexpr std::uint32_t kSlotsMax = 4096;  ///< ranks of one host
inline constexpr std::size_t kHostsMax = 4096;

struct HostSlots {
  std::string name;
  std::vector<std::uint32_t> slots;  ///< numbers of its devices, ascending; one rank each
};

/// Parses lines of the form `NAME slots=N`. Blank lines and comments (`#`) are ignored, and so is
/// `max_slots=N`. `path` is named in errors.
/// Throws: InvalidArgument for any other line, an unsafe or repeated name, or when there is no
/// host.
std::vector<HostSlots> parse_hostfile(std::string_view text, std::string_view path);

/// Which of the hosts and slots take part. Empty texts and zeros choose all.
struct HostFilter {
  std::string include = {};   ///< `HOST[:SLOT[,SLOT]...][@HOST...]`: only these
  std::string exclude = {};   ///< the same grammar: all but these
  std::uint32_t nodes = 0;    ///< the first so many hosts
  std::uint32_t devices = 0;  ///< slots 0 to N - 1 of each host, however many the hostfile says
};

/// Returns the chosen hosts in the order of `hosts`, without those that have no slot left.
/// Throws: InvalidArgument when filters contradict each other, name a host or slot that is not in
/// `hosts`, or leave none.
std::vector<HostSlots> select_hosts(const std::vector<HostSlots>& hosts, const HostFilter& filter);

}  // namespace unishard::tools
