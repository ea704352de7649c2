#include "formats/dcp/model_parts.hpp"

#include "unishard/converters/replica_names.hpp"

#include "formats/dcp/keys.hpp"
#include "formats/dcp/optimizer_models.hpp"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace unishard::converters::dcp {
namespace {

/// What an optimizer's parameters find behind one prefix.
struct FoundPart {
  std::size_t names = 0, shapes = 0;
  std::size_t known = 0;  ///< shapes that could agree
};

using FoundParts = std::map<std::string, FoundPart>;

/// Returns what precedes the parameters' names in the model, "" among it.
FoundParts find_parts(const ClaimedShapes& parameters, const std::vector<NamedShape>& model) {
  FoundParts parts;
  for (const NamedShape& tensor : model) {
    for (std::size_t at = 0;;) {
      if (const auto found = parameters.find(tensor.name.substr(at)); found != parameters.end()) {
        FoundPart& part = parts[tensor.name.substr(0, at)];
        ++part.names;
        part.known += found->second ? 1u : 0u;
        part.shapes += found->second == tensor.shape ? 1u : 0u;
      }
      const std::size_t dot = tensor.name.find('.', at);
      if (dot == std::string::npos) break;
      at = dot + 1;
    }
  }
  return parts;
}

/// Whether an optimizer with `count` parameters may be one over the part alone.
bool may_be_its_own(const std::string& prefix, const FoundPart& part, const FoundPart& whole,
                    std::size_t count) {
  if (names_a_copy(prefix) || part.names <= whole.names) return false;
  if (2 * part.names <= count || 2 * part.shapes < part.known) return false;
  return whole.names == 0 || part.names == count || prefix == kReplica;
}

/// Returns those that have most of the names, and then of the shapes.
std::vector<std::string> best_parts(const FoundParts& parts) {
  const auto measure = [](const auto& each) {
    return std::pair(each.second.names, each.second.shapes);
  };
  const auto most = measure(*std::ranges::max_element(parts, {}, measure));
  std::vector<std::string> best;
  for (const auto& each : parts) {
    if (measure(each) == most) best.push_back(each.first);
  }
  return best;
}

/// Returns the only one with a name like the optimizer's key, or all.
std::vector<std::string> named_like(std::string_view optimizer,
                                    const std::vector<std::string>& parts) {
  std::vector<std::string> like;
  for (const std::string& part : parts) {
    if (name_one_model(optimizer, part)) like.push_back(part);
  }
  return like.size() == 1 ? like : parts;
}

}  // namespace

ModelPart find_part(const ClaimedShapes& parameters, const std::vector<NamedShape>& model,
                    std::string_view optimizer_prefix) {
  ModelPart out;
  std::unordered_set<std::string_view> known;
  for (const NamedShape& tensor : model) known.insert(tensor.name);
  const auto is_known = [&](const auto& parameter) { return known.contains(parameter.first); };
  if (std::ranges::all_of(parameters, is_known)) return out;  // the usual case
  FoundParts parts = find_parts(parameters, model);
  const FoundPart whole = parts[""];
  std::erase_if(parts, [&](const auto& each) {
    return !may_be_its_own(each.first, each.second, whole, parameters.size());
  });
  if (parts.empty()) return out;
  std::vector<std::string> best = named_like(optimizer_prefix, best_parts(parts));
  if (best.size() > 1) {
    out.undecided = std::move(best);
    return out;
  }
  for (const auto& [name, shape] : parameters) {
    std::string full = best.front() + name;
    if (known.contains(full) || whole.names == 0) out.names.emplace(name, std::move(full));
  }
  return out;
}

}  // namespace unishard::converters::dcp
