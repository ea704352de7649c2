#include "unishard/format/node_names.hpp"

namespace unishard {
namespace {

constexpr const char* kNodes = "nodes";  // member of Catalog::producer

}  // namespace

std::vector<std::string> nodes_of(const Catalog& catalog) {
  if (!catalog.producer.is_object()) return {};
  const auto found = catalog.producer.find(kNodes);
  if (found == catalog.producer.end() || !found->is_array() || found->size() != catalog.world_size)
    return {};
  std::vector<std::string> nodes;
  for (const Json& node : *found) {
    if (!node.is_string()) return {};
    nodes.push_back(node.get<std::string>());
  }
  return nodes;
}

void record_nodes(Catalog& catalog, const std::vector<std::string>& nodes) {
  if (!nodes.empty()) {
    if (!catalog.producer.is_object()) catalog.producer = Json::object();
    catalog.producer[kNodes] = nodes;
  } else if (catalog.producer.is_object()) {
    catalog.producer.erase(kNodes);
  }
}

}  // namespace unishard
