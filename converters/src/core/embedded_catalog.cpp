#include "core/embedded_catalog.hpp"

#include "unishard/converters/replica_names.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include "core/file_records.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace unishard::converters {
namespace {

constexpr int kVersion = 1;
constexpr std::string_view kMaster = "fp32_master";

/// Rank of a state as representative of its parameter: the lowest represents it, 3 never does.
int model_rank(const TensorInfo& tensor) {
  if (tensor.state == state::kWeights) return 0;
  if (tensor.state == state::kFp32) return 1;
  return tensor.state == state::kBuffer ? 2 : 3;
}

void restore_tensors(const Json& saved, Catalog& catalog, const std::string& where,
                     std::vector<bool>& known) {
  std::unordered_map<std::string, const Json*> rows;
  for (const Json& row : saved.at("tensors")) rows.emplace(row.at(0).get<std::string>(), &row);
  for (TensorInfo& tensor : catalog.tensors) {
    const auto row = rows.find(tensor.fqn);
    known.push_back(row != rows.end());
    if (!known.back()) continue;
    tensor.fqn = row->second->at(1).get<std::string>();
    tensor.state = row->second->at(2).get<std::string>();
    tensor.frozen = row->second->at(3).get<bool>();
    tensor.group = row->second->at(4).get<std::int32_t>();
  }
  const auto found = std::ranges::count(known, true);
  if (std::cmp_not_equal(found, rows.size())) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: {} of the {} tensors that it lists are not in the file", where,
                      rows.size() - static_cast<std::size_t>(found), rows.size()));
  }
  catalog.aliases.clear();
  for (const Json& alias : saved.at("aliases")) {
    catalog.aliases.push_back({alias.at(0).get<std::string>(), alias.at(1).get<std::string>()});
  }
}

}  // namespace

void note_metadata(const Catalog& catalog, std::vector<std::string>& notes) {
  constexpr std::size_t kNamed = 8;
  std::vector<std::string> keys;
  for (const std::string_view record : {kSafetensorsMetadata, kGgufMetadata}) {
    const Json metadata = file_record(catalog.producer, record);
    for (const auto& [key, value] : metadata.items()) {
      if (key != "format" && !key.starts_with("unishard.")) keys.push_back(quote(key));
    }
  }
  if (keys.empty()) return;
  const std::size_t more = keys.size() - std::min(keys.size(), kNamed);
  keys.resize(keys.size() - more);
  notes.push_back(fmt::format("metadata of the file: {}{}", fmt::join(keys, ", "),
                              more == 0 ? "" : fmt::format(" and {} more", more)));
}

void drop_unreadable(Catalog& catalog, Losses& losses) {
  for (const auto& [section, key, reason] : unreadable_parts(catalog)) {
    losses.push_back(
        {Role::Setting, fmt::format("{}{}{}", section, key.empty() ? "" : ".", key), reason});
    const auto member = std::ranges::find(Catalog::sections(), section,
                                          [](const auto& each) { return std::string(each.first); });
    if (key.empty()) {
      catalog.*member->second = nullptr;
    } else {
      (catalog.*member->second).erase(key);
    }
  }
}

std::vector<std::string> flat_paths(const Catalog& catalog, std::string_view model_prefix) {
  std::unordered_map<std::string_view, std::size_t> model;
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    const TensorInfo& tensor = catalog.tensors[i];
    if (model_rank(tensor) > 2) continue;
    const auto [found, is_new] = model.emplace(tensor.fqn, i);
    if (model_rank(tensor) < model_rank(catalog.tensors[found->second])) found->second = i;
  }
  std::vector<std::string> paths;
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    const TensorInfo& tensor = catalog.tensors[i];
    const auto found = model.find(tensor.fqn);
    const std::string_view name = tensor.state == state::kFp32 ? kMaster : tensor.state;
    paths.push_back(found != model.end() && found->second == i
                        ? fmt::format("{}{}", model_prefix, tensor.fqn)
                        : fmt::format("optimizer.state.{}.{}", tensor.fqn, name));
  }
  return paths;
}

bool is_plain_model(const Catalog& catalog) {
  const auto is_plain = [](const TensorInfo& tensor) {
    return tensor.state == state::kWeights && !tensor.frozen && tensor.group < 0;
  };
  return std::ranges::all_of(catalog.tensors, is_plain) &&
         std::ranges::all_of(Catalog::sections(), [&](const auto& section) {
           return section.second == &Catalog::producer || (catalog.*section.second).is_null();
         });
}

bool is_bare_model(const Catalog& catalog) {
  static const Json kUsual = {{"metadata", {{"format", "pt"}}}};
  const Json& producer = catalog.producer;
  const bool says_nothing = producer.is_null() || producer == Json::object() || producer == kUsual;
  return is_plain_model(catalog) && catalog.aliases.empty() && says_nothing &&
         !has_replica_part(catalog);
}

bool needs_text(const Catalog& catalog) {
  return !is_plain_model(catalog) || !catalog.producer.is_null() || has_replica_part(catalog);
}

std::string catalog_text(const Catalog& catalog, const std::vector<std::string>& paths) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const TensorInfo& tensor = catalog.tensors[i];
    rows.push_back(Json::array({paths[i], tensor.fqn, tensor.state, tensor.frozen, tensor.group}));
  }
  Json aliases = Json::array();
  for (const Alias& alias : catalog.aliases)
    aliases.push_back(Json::array({alias.fqn, alias.target}));
  Json text = {
      {"version", kVersion},  {"tensors", std::move(rows)},       {"aliases", std::move(aliases)},
      {"step", catalog.step}, {"world_size", catalog.world_size}, {"stage", catalog.stage}};
  for (const auto& [name, section] : Catalog::sections()) {
    if (!(catalog.*section).is_null()) text[name] = catalog.*section;
  }
  return text.dump();
}

std::vector<bool> restore_catalog(std::string_view text, Catalog& catalog,
                                  const std::string& where) {
  const Json saved = parse_json(text, where);
  std::vector<bool> known;
  try {
    if (saved.at("version").get<int>() != kVersion) {
      raise(ErrorCode::Unsupported, fmt::format("{}: version {} of the catalog's text; {} is read",
                                                where, saved.at("version").dump(), kVersion));
    }
    restore_tensors(saved, catalog, where, known);
    catalog.step = saved.at("step").get<std::int64_t>();
    catalog.world_size = saved.at("world_size").get<std::uint32_t>();
    catalog.stage = saved.at("stage").get<std::uint32_t>();
    for (const auto& [name, section] : Catalog::sections())
      catalog.*section = saved.value(name, Json());
  } catch (const Json::exception&) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: it is no catalog: a member is missing or has another type", where));
  }
  return known;
}

}  // namespace unishard::converters
