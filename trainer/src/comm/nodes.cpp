#include "comm/nodes.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>

namespace unishard::trainer::detail {
namespace {

std::string name_of_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace

Nodes::Nodes(std::vector<std::string> names) : names_(std::move(names)) {
  std::map<std::string, std::uint32_t> first;
  for (const std::string& name : names_)
    leaders_.push_back(
        first.try_emplace(name, static_cast<std::uint32_t>(leaders_.size())).first->second);
  if (first.size() == 1) names_.clear();
}

std::vector<std::uint32_t> Nodes::leaders() const {
  std::vector<std::uint32_t> all;
  for (std::uint32_t rank = 0; rank < leaders_.size(); ++rank)
    if (is_leader(rank)) all.push_back(rank);
  return all;
}

Nodes find_nodes(Communicator& communicator, bool is_local, const std::string& node) {
  if (!is_local) return Nodes(communicator.size());
  const std::string host = name_of_host();
  return Nodes(gather_text(communicator, node.empty() ? host : fmt::format("{} ({})", node, host)));
}

}  // namespace unishard::trainer::detail
