#include "unishard/converters/hub_names.hpp"

#include "core/forwarding_source.hpp"
#include "reading/fused_parameters.hpp"
#include "reading/model_type.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters {
namespace {

/// A tensor of the result: elements of one of the source.
struct CutTensor {
  std::size_t tensor = 0;
  ElementRange range;
};

struct HubContents {
  Catalog catalog;
  std::vector<CutTensor> parts;  ///< for each tensor of the catalog
  /// The names of the result for each name of the source that is another there.
  std::map<std::string, std::vector<std::string>, std::less<>> names;
};

class HubNamedSource final : public ForwardingSource {
 public:
  HubNamedSource(std::unique_ptr<Source> source, HubContents contents)
      : ForwardingSource(std::move(source)), contents_(std::move(contents)) {}

  const Catalog& catalog() const override { return contents_.catalog; }
  std::uint64_t read_boundary(std::size_t tensor, std::uint64_t element) const override {
    const auto& [of, range] = contents_.parts[tensor];
    const std::uint64_t boundary = source().read_boundary(of, range.begin + element);
    return std::max(boundary, range.begin) - range.begin;
  }
  bool is_in_order(std::size_t tensor) const override {
    return source().is_in_order(contents_.parts[tensor].tensor);
  }
  std::vector<StoredRange> stored_ranges(std::size_t tensor) const override {
    const auto& [of, range] = contents_.parts[tensor];
    std::vector<StoredRange> found;
    for (StoredRange stored : source().stored_ranges(of)) {
      stored.range = {std::max(stored.range.begin, range.begin),
                      std::min(stored.range.end, range.end)};
      if (stored.range.empty()) continue;
      stored.range = {stored.range.begin - range.begin, stored.range.end - range.begin};
      found.push_back(stored);
    }
    return found;
  }

 private:
  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    const auto& [of, whole] = contents_.parts[tensor];
    source().read(of, {whole.begin + range.begin, whole.begin + range.end}, out);
  }

  const HubContents contents_;
};

void rename_units(const HubContents& contents, std::vector<UnitLayout>& units) {
  for (UnitLayout& unit : units) {
    std::vector<std::string> fqns;
    for (std::string& fqn : unit.fqns) {
      const auto found = contents.names.find(fqn);
      if (found == contents.names.end()) {
        fqns.push_back(std::move(fqn));
      } else {
        fqns.insert(fqns.end(), found->second.begin(), found->second.end());
      }
    }
    unit.fqns = std::move(fqns);
  }
}

void rename_group(const HubContents& contents, Json& group) {
  if (!group.is_object() || !group.contains("params") || !group["params"].is_array()) return;
  Json params = Json::array();
  for (const Json& fqn : group["params"]) {
    const auto found = fqn.is_string() ? contents.names.find(fqn.get_ref<const std::string&>())
                                       : contents.names.end();
    if (found == contents.names.end()) {
      params.push_back(fqn);
    } else {
      for (const std::string& name : found->second) params.push_back(name);
    }
  }
  group["params"] = std::move(params);
}

/// The second name of a parameter that is cut is no tensor's any more.
void rename_aliases(const HubContents& contents, std::vector<Alias>& aliases) {
  std::erase_if(aliases, [&](const Alias& alias) {
    const auto found = contents.names.find(alias.target);
    return found != contents.names.end() && found->second.size() > 1;
  });
  for (Alias& alias : aliases) {
    const auto found = contents.names.find(alias.target);
    if (found != contents.names.end()) alias.target = found->second.front();
  }
}

void add_part(const TensorInfo& whole, std::size_t tensor, FilePart part, HubContents& contents) {
  TensorInfo info = whole;
  info.fqn = std::move(part.name);
  info.shape = std::move(part.shape);
  info.crc64.reset();
  info.stats.reset();
  contents.catalog.tensors.push_back(std::move(info));
  contents.parts.push_back({tensor, part.range});
}

HubContents hub_contents(const Catalog& from, const FusedParameters& fused) {
  HubContents contents{.catalog = from, .parts = {}, .names = {}};
  contents.catalog.tensors.clear();
  for (std::size_t i = 0; i < from.tensors.size(); ++i) {
    const TensorInfo& tensor = from.tensors[i];
    std::vector<FilePart> parts = fused.parts(tensor.fqn, tensor.shape);
    if (parts.empty()) {
      contents.catalog.tensors.push_back(tensor);
      contents.parts.push_back({i, {0, tensor.elements()}});
      continue;
    }
    std::vector<std::string>& names = contents.names[tensor.fqn];
    if (names.empty()) {
      for (const FilePart& part : parts) names.push_back(part.name);
    }
    for (FilePart& part : parts) add_part(tensor, i, std::move(part), contents);
  }
  rename_aliases(contents, contents.catalog.aliases);
  rename_units(contents, contents.catalog.units);
  if (contents.catalog.groups.is_array()) {
    for (Json& group : contents.catalog.groups) rename_group(contents, group);
  }
  return contents;
}

}  // namespace

HubNamed hub_named(std::unique_ptr<Source> source, std::string_view config) {
  const std::string type = model_type_of(config);
  const auto fused = FusedParameters::of(type);
  if (!fused) return {.source = std::move(source)};
  std::set<std::string_view> experts;
  for (const TensorInfo& tensor : source->catalog().tensors) {
    if (fused->are_experts(tensor.fqn)) experts.insert(tensor.fqn);
  }
  if (experts.empty()) return {.source = std::move(source)};
  HubContents contents = hub_contents(source->catalog(), *fused);
  validate(contents.catalog, source->path().string());
  HubNamed result;
  std::size_t parts = 0;
  for (const auto& [name, names] : contents.names) {
    if (!experts.contains(name)) continue;
    ++result.experts;
    parts += names.size();
  }
  result.remark = fmt::format(
      "{} parameters of stacked experts become {} tensors under the names that {} has on the hub, "
      "as config.json says; --module-names keeps the stacks that transformers has in memory",
      result.experts, parts, type);
  result.source = std::make_unique<HubNamedSource>(std::move(source), std::move(contents));
  return result;
}

}  // namespace unishard::converters
