#include "unishard/format/crc64.hpp"

#include "views/inspect_order.hpp"
#include "workflows/losses.hpp"

#include <cmath>

namespace unishard::cli {
namespace {

template <class T>
Json optional_json(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

/// Returns the producer without what programs record to load or write the file again: that is as
/// long as the tensors.
Json without_keys(Json producer) {
  if (!producer.is_object()) return producer;
  producer.erase("state_dict");
  producer.erase("dcp_folder");
  if (const auto places = producer.find("torch_arrangement");
      places != producer.end() && places->is_object())
    places->erase("file");
  return producer;
}

Json tensor_json(const tools::Description& description, std::size_t index,
                 const InspectView& view) {
  const TensorInfo& tensor = description.catalog.tensors[index];
  Json json = {{"name", tensor.fqn},
               {"state", tensor.state},
               {"dtype", name_of(tensor.dtype)},
               {"shape", tensor.shape},
               {"elements", tensor.elements()},
               {"bytes", tensor.bytes()},
               {"group", tensor.group},
               {"frozen", tensor.frozen},
               {"derived", tensor.derived},
               {"crc64", tensor.crc64 ? Json(hex64(*tensor.crc64)) : Json(nullptr)},
               {"stats", tensor.stats ? stats_json(*tensor.stats) : Json(nullptr)}};
  if (view.layout) {
    Json owners = Json::array();
    for (const tools::OwnedPart& owner : description.owners.at(index)) {
      Json& part = owners.emplace_back(
          Json{{"rank", owner.rank}, {"begin", owner.range.begin}, {"end", owner.range.end}});
      if (owner.box.sizes.empty()) continue;
      part["offsets"] = owner.box.offsets;
      part["sizes"] = owner.box.sizes;
    }
    json["layout"] = std::move(owners);
  }
  return json;
}

}  // namespace

Json stats_json(const Stats& stats) {
  if (stats.count == 0) return nullptr;
  const bool is_finite = stats.finite_count() > 0;
  const auto number = [&](double value) { return is_finite ? Json(value) : Json(nullptr); };
  return {{"count", stats.count},     {"nan", stats.nan_count},
          {"inf", stats.inf_count},   {"min", number(stats.min)},
          {"max", number(stats.max)}, {"norm", number(std::sqrt(stats.sum_squares))}};
}

Json tags_json(const tools::Description& description) {
  const auto problem_json = [](const std::string& problem) {
    return problem.empty() ? Json(nullptr) : Json(problem);
  };
  Json tags = Json::array();
  for (const tools::Description::Tag& entry : description.tags) {
    tags.push_back({{"tag", entry.tag},
                    {"format", entry.format},
                    {"step", entry.step < 0 ? Json(nullptr) : Json(entry.step)},
                    {"saved_unix_seconds", entry.saved_unix_seconds},
                    {"problem", problem_json(entry.problem)}});
  }
  return {{"latest", optional_json(description.latest)},
          {"latest_problem", problem_json(description.latest_problem)},
          {"tags", std::move(tags)}};
}

Json inspect_json(const tools::Description& description, const InspectView& view) {
  const Catalog& catalog = description.catalog;
  const bool is_native = !description.shards.empty(), is_run = description.is_run();
  Json json = {
      {"format", description.format},
      {"path", description.path.string()},
      {"tag", description.tag.empty() ? Json(nullptr) : Json(description.tag)},
      {"step", is_run ? Json(catalog.step) : Json(nullptr)},
      {"world_size", is_run ? Json(catalog.world_size) : Json(nullptr)},
      {"stage", is_run ? Json(catalog.stage) : Json(nullptr)},
      {"identity", optional_json(description.identity)},
      {"saved_unix_seconds", is_native ? Json(description.saved_unix_seconds) : Json(nullptr)},
      {"parameters", catalog.parameter_count()},
      {"bytes", catalog.stored_bytes()}};
  json.update(tags_json(description));
  Json shards = Json::array();
  for (const auto& shard : description.shards) {
    shards.push_back({{"file", shard.file},
                      {"rank", shard.rank},
                      {"bytes", shard.bytes},
                      {"shared_bytes", shard.shared_bytes},
                      {"shared_with", shard.shared_with}});
  }
  json["shards"] = std::move(shards);
  json["compression"] =
      description.compression.empty() ? Json(nullptr) : Json(description.compression);
  Json tensors = Json::array();
  for (const std::size_t index : shown_tensors(catalog, view)) {
    tensors.push_back(tensor_json(description, index, view));
  }
  json["tensors"] = std::move(tensors);
  Json::object_t aliases;  // filled as a list: the names are distinct, and looking is linear
  aliases.reserve(catalog.aliases.size());
  for (const Alias& alias : catalog.aliases) aliases.push_back({alias.fqn, alias.target});
  json["aliases"] = std::move(aliases);
  json["losses"] = tools::losses_json(description.losses);
  json["groups"] = catalog.groups;
  json["producer"] = without_keys(catalog.producer);
  return json;
}

}  // namespace unishard::cli
