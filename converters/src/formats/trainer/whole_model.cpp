#include "formats/trainer/whole_model.hpp"

#include "core/model_tensors.hpp"
#include "formats/dcp/unnamed_weights.hpp"
#include "formats/trainer/known_models.hpp"
#include "reading/model_doubts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

namespace unishard::converters::trainer {
namespace {

/// Whether there are several layers, and all have tensors of the same names. The numbers of a list
/// that is deeper, such as experts, belong to the names.
bool has_equal_layers(const Catalog& catalog) {
  std::map<std::string, std::set<std::string>> layers;  // the layers that have a name
  for (const TensorInfo& tensor : catalog.tensors) {
    const std::string& name = tensor.fqn;
    const std::size_t begin = name.find_first_of("0123456789");
    if (!is_of_model(tensor) || begin == name.npos || begin == 0 || name[begin - 1] != '.')
      continue;
    const std::size_t end = std::min(name.find('.', begin), name.size());
    layers[name.substr(0, begin) + name.substr(end)].insert(name.substr(begin, end - begin));
  }
  return !layers.empty() && layers.begin()->second.size() > 1 &&
         std::ranges::all_of(
             layers, [&](const auto& each) { return each.second == layers.begin()->second; });
}

}  // namespace

bool has_all_of_type(std::string_view type, const Catalog& catalog) {
  const auto order = known_order(type);
  const auto is_strange = [&](const TensorInfo& tensor) {
    return is_of_model(tensor) && !order->place_of(tensor.fqn);
  };
  return order && std::ranges::none_of(catalog.tensors, is_strange) && has_equal_layers(catalog);
}

void pass_whole_model(Storage& storage, const Path& folder, dcp::Arrangement& arranged) {
  const auto unnamed = std::ranges::find(arranged.losses, dcp::kUnnamedWeight, &Loss::name);
  if (unnamed == arranged.losses.end() ||
      !doubts_about_model(storage, folder, arranged.catalog).empty())
    return;
  arranged.remark_on_states(
      fmt::format("{}; the model has all that its index or its config.json tells: what is missing "
                  "is of another module",
                  unnamed->why));
  arranged.losses.erase(unnamed);
}

}  // namespace unishard::converters::trainer
