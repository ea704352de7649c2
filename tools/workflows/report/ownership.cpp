#include "workflows/report/ownership.hpp"

#include "workflows/name_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

namespace unishard::tools {
namespace {

/// Returns how many of `count` things share a row, so that there are at most `most` rows.
std::size_t things_per_row(std::size_t count, std::size_t most) {
  return std::max<std::size_t>(1, (count + most - 1) / most);
}

/// Numbers the units of tensors in the order of their first tensor.
class Units {
 public:
  explicit Units(const Catalog& catalog) {
    for (const UnitLayout& unit : catalog.units) {
      for (const std::string& fqn : unit.fqns)
        unit_of_.emplace(fqn, unit.name.empty() ? "(root)" : unit.name);
    }
  }

  std::size_t number_of(const TensorInfo& tensor) {
    const auto [place, is_new] = number_.emplace(name_of_unit(tensor), names_.size());
    if (is_new) names_.push_back(place->first);
    return place->second;
  }
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::string name_of_unit(const TensorInfo& tensor) const {
    const auto known = unit_of_.find(tensor.fqn);
    if (known != unit_of_.end()) return known->second;
    const NameParts parts = split_name(tensor.fqn);
    const std::optional<std::uint32_t> layer = parts.layer();
    if (!layer) return unit_of_.empty() ? "(outside of layers)" : "(outside of units)";
    return fmt::format("{}{}", parts.texts.front(), *layer);
  }

  std::unordered_map<std::string, std::string> unit_of_;
  std::unordered_map<std::string, std::size_t> number_;
  std::vector<std::string> names_;
};

std::vector<std::string> rank_labels(std::size_t ranks, std::size_t per_column) {
  std::vector<std::string> labels;
  for (std::size_t first = 0; first < ranks; first += per_column) {
    const std::size_t last = std::min(first + per_column, ranks) - 1;
    labels.push_back(first == last ? std::to_string(first) : fmt::format("{}-{}", first, last));
  }
  return labels;
}

}  // namespace

Ownership ownership(const Description& description) {
  Ownership out;
  if (description.owners.empty()) return out;
  const Catalog& catalog = description.catalog;
  std::size_t ranks = catalog.world_size;
  for (const auto& owners : description.owners) {
    for (const OwnedPart& owner : owners) ranks = std::max<std::size_t>(ranks, owner.rank + 1);
  }
  const std::size_t per_column = things_per_row(ranks, kOwnershipColumns);
  out.ranks = rank_labels(ranks, per_column);
  out.rank_bytes.resize(ranks);
  Units units(catalog);
  std::vector<std::vector<std::uint64_t>> by_unit;
  for (std::size_t i = 0; i < description.owners.size(); ++i) {
    const TensorInfo& tensor = catalog.tensors[i];
    if (tensor.derived) continue;  // it has no bytes
    const std::size_t unit = units.number_of(tensor);
    if (unit >= by_unit.size())
      by_unit.resize(unit + 1, std::vector<std::uint64_t>(out.ranks.size()));
    for (const OwnedPart& owner : description.owners[i]) {
      const std::uint64_t bytes =
          ElementMap(tensor.shape, owner.range, owner.box).elements() * size_of(tensor.dtype);
      by_unit[unit][owner.rank / per_column] += bytes;
      out.rank_bytes[owner.rank] += bytes;
    }
  }
  const std::size_t per_row = things_per_row(by_unit.size(), kOwnershipRows);
  for (std::size_t first = 0; first < by_unit.size(); first += per_row) {
    const std::size_t last = std::min(first + per_row, by_unit.size()) - 1;
    out.units.push_back(first == last
                            ? units.names()[first]
                            : fmt::format("{} to {}", units.names()[first], units.names()[last]));
    auto& row = out.bytes.emplace_back(out.ranks.size());
    for (std::size_t unit = first; unit <= last; ++unit) {
      for (std::size_t column = 0; column < row.size(); ++column)
        row[column] += by_unit[unit][column];
    }
  }
  return out;
}

}  // namespace unishard::tools
