#include "python/c_catalog.hpp"

#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/text.hpp"

#include <fmt/format.h>

#include <optional>

namespace unishard::c_interface {
namespace {

constexpr std::string_view kCatalog = "the catalog";

Json stats_json(const std::optional<Stats>& stats) {
  if (!stats || stats->count == 0) return nullptr;
  return {{"count", stats->count}, {"nan", stats->nan_count}, {"inf", stats->inf_count},
          {"min", stats->min},     {"max", stats->max},       {"sum_squares", stats->sum_squares}};
}

Json tensor_json(const TensorInfo& tensor) {
  return {{"name", tensor.fqn},
          {"state", tensor.state},
          {"dtype", name_of(tensor.dtype)},
          {"shape", tensor.shape},
          {"bytes", tensor.bytes()},
          {"group", tensor.group},
          {"frozen", tensor.frozen},
          {"derived", tensor.derived},
          {"crc64", tensor.crc64 ? Json(hex64(*tensor.crc64)) : Json(nullptr)},
          {"stats", stats_json(tensor.stats)}};
}

TensorInfo tensor_from(const Json& row) {
  TensorInfo tensor;
  tensor.fqn = row.at("name").get<std::string>();
  tensor.state = row.at("state").get<std::string>();
  const std::string name = row.at("dtype").get<std::string>();
  const std::optional<DType> dtype = dtype_from_name(name);
  if (!dtype)
    raise(ErrorCode::Unsupported,
          fmt::format("tensor {}: {} is not a known element type", quote(tensor.fqn), quote(name)));
  tensor.dtype = *dtype;
  tensor.shape = row.at("shape").get<Shape>();
  tensor.group = row.value("group", -1);
  tensor.frozen = row.value("frozen", false);
  tensor.derived = row.value("derived", false);
  return tensor;
}

}  // namespace

Json catalog_json(const Catalog& catalog) {
  Json json = {
      {"step", catalog.step}, {"world_size", catalog.world_size}, {"stage", catalog.stage}};
  Json tensors = Json::array(), aliases = Json::array();
  for (const TensorInfo& tensor : catalog.tensors) tensors.push_back(tensor_json(tensor));
  for (const Alias& alias : catalog.aliases) aliases.push_back({alias.fqn, alias.target});
  json["tensors"] = std::move(tensors);
  json["aliases"] = std::move(aliases);
  for (const auto& [name, member] : Catalog::sections()) json[name] = catalog.*member;
  return json;
}

Catalog catalog_from(const char* text) {
  const Json json = parse_json(text, kCatalog);
  Catalog catalog;
  try {
    for (const Json& row : json.at("tensors")) catalog.tensors.push_back(tensor_from(row));
    for (const Json& row : json.value("aliases", Json::array()))
      catalog.aliases.push_back({row.at(0).get<std::string>(), row.at(1).get<std::string>()});
    catalog.step = json.at("step").get<std::int64_t>();
    catalog.world_size = json.at("world_size").get<std::uint32_t>();
    catalog.stage = json.value("stage", 0U);
    for (const auto& [name, member] : Catalog::sections())
      catalog.*member = json.value(name, Json());
  } catch (const Json::exception& error) {
    raise(ErrorCode::InvalidArgument, fmt::format("{}: {}", kCatalog, error.what()));
  }
  validate(catalog, kCatalog);
  return catalog;
}

}  // namespace unishard::c_interface
