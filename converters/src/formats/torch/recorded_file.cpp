#include "formats/torch/recorded_file.hpp"

#include "unishard/format/error.hpp"

#include "containers/pickle_json.hpp"
#include "core/file_records.hpp"

#include <utility>

namespace unishard::converters::torch {
namespace {

/// Returns the rows of a layout without the paths, which the object has.
Json without_paths(Json rows) {
  for (Json& row : rows) row[1] = nullptr;
  return rows;
}

bool is_dict(const Json& object) {
  if (!object.is_object() || !object.contains("$type")) return object.is_object();
  return object.contains("pairs") && object["pairs"].is_array();
}

const Json* recorded(const Catalog& catalog) {
  if (!catalog.producer.is_object()) return nullptr;
  const auto found = catalog.producer.find(kTorchArrangement);
  return found != catalog.producer.end() && found->is_object() ? &*found : nullptr;
}

/// The plug-in begins keys with a dot, which the names of tensors in a file do not have.
std::string name_in_file(const std::string& key) {
  return key.starts_with('.') ? key.substr(1) : key;
}

void use_names_in_file(Json& value) {
  if (value.is_object() && value.contains("$tensor")) {
    value["$tensor"] = name_in_file(value["$tensor"].get<std::string>());
  } else if (value.is_structured()) {
    for (Json& child : value) use_names_in_file(child);
  }
}

/// Returns the dict that the plug-in for Lightning has kept.
/// Throws: Json::exception or Error for one that it does not make.
std::optional<RecordedFile> kept_by_plug_in(const Catalog& catalog) {
  if (file_record(catalog.producer, "library") != "lightning" || !catalog.client_state.is_object())
    return std::nullopt;
  Json object = catalog.client_state.at("content");
  Json rows = Json::array();
  const Json& tensors = catalog.client_state.at("tensors");
  for (const auto& [key, place] : tensors.items())
    rows.push_back(Json::array({name_in_file(key), nullptr, place.at(0), place.at(1)}));
  const Json layout = {{"tensors", std::move(rows)}, {"constants", Json::array()}};
  if (!is_dict(object) || !dcp::has_layout_rows(layout)) return std::nullopt;
  auto contents = dcp::KeyedContents::match(layout, catalog);
  if (!contents) return std::nullopt;
  tensors_in(object);  // throws for names that are no texts
  use_names_in_file(object);
  contents->add_constants(take_inline_tensors(object));
  return RecordedFile{std::move(object), std::move(*contents)};
}

std::optional<RecordedFile> read_text(const Json& places, const Catalog& catalog) {
  const auto& text = places.at(std::string(kTorchObject)).get_ref<const std::string&>();
  Json file = parse_json(text, "the recorded torch.save file", kRecordLimits);
  if (file.at("values") != digest_of_values(catalog)) return std::nullopt;
  if (!dcp::has_layout_rows(file) || !is_dict(file.at("object"))) return std::nullopt;
  auto contents = dcp::KeyedContents::match(file, catalog);
  if (!contents) return std::nullopt;
  tensors_in(file["object"]);  // throws for names that are no texts
  return RecordedFile{std::move(file.at("object")), std::move(*contents)};
}

}  // namespace

std::string text_of_file(const Json& layout, const Catalog& catalog) {
  const Json file = {{"object", layout["object"]},
                     {"tensors", without_paths(layout["tensors"])},
                     {"constants", without_paths(layout["constants"])},
                     {"values", digest_of_values(catalog)}};
  std::string text = file.dump();
  return text.size() > kRecordLimits.bytes ? std::string() : text;
}

std::optional<RecordedFile> recorded_file(const Catalog& catalog) {
  const Json* const places = recorded(catalog);
  try {
    return places != nullptr ? read_text(*places, catalog) : kept_by_plug_in(catalog);
  } catch (const Json::exception&) {
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool had_several_parts(const Catalog& catalog) {
  const Json* const places = recorded(catalog);
  return places != nullptr && !places->contains("model");
}

Json with_member(Json object, std::string_view key, Json value) {
  if (object.contains("$type")) {
    object["pairs"].push_back(Json::array({std::string(key), std::move(value)}));
  } else {
    object[std::string(key)] = std::move(value);
  }
  return object;
}

}  // namespace unishard::converters::torch
