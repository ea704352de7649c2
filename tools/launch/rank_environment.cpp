#include "launch/rank_environment.hpp"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <string_view>

namespace unishard::tools {

std::vector<std::string> rank_environment(const RankPlace& place) {
  const std::string rank = std::to_string(place.rank);
  const std::string size = std::to_string(place.world_size);
  std::map<std::string, std::string, std::less<>> own = {
      {"RANK", rank},
      {"LOCAL_RANK", rank},
      {"WORLD_SIZE", size},
      {"LOCAL_WORLD_SIZE", size},
      {"MASTER_ADDR", place.master_addr},
      {"MASTER_PORT", std::to_string(place.master_port)}};
  bool has_threads = false;
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    has_threads |= name == "OMP_NUM_THREADS";
    if (own.find(name) == own.end()) out.emplace_back(text);
  }
  if (!has_threads) own["OMP_NUM_THREADS"] = "1";
  for (const auto& [name, value] : own) out.push_back(name + "=" + value);
  return out;
}

}  // namespace unishard::tools
