#include "launch/rank_environment.hpp"

#include <unistd.h>

#include <map>
#include <string_view>

namespace unishard::tools {

std::vector<std::string> rank_environment(const RankPlace& place, const Variables& variables) {
  std::map<std::string, std::string, std::less<>> all;
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    all.try_emplace(std::string(text.substr(0, equals)), text.substr(equals + 1));
  }
  for (const auto& [name, value] : variables) all[name] = value;
  all.try_emplace("OMP_NUM_THREADS", "1");
  all["RANK"] = std::to_string(place.rank);
  all["LOCAL_RANK"] = std::to_string(place.local_rank);
  all["WORLD_SIZE"] = std::to_string(place.world_size);
  all["LOCAL_WORLD_SIZE"] = std::to_string(place.local_size);
  all["MASTER_ADDR"] = place.master_addr;
  all["MASTER_PORT"] = std::to_string(place.master_port);
  for (const auto& [name, value] : all) out.push_back(name + "=" + value);
  return out;
}

}  // namespace unishard::tools
