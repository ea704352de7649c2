#include "formats/dcp/key_layout.hpp"

#include "unishard/format/error.hpp"

#include "containers/pickle_json.hpp"
#include "containers/plain_parts.hpp"
#include "core/file_records.hpp"
#include "formats/dcp/embedded_catalog.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_set>

namespace unishard::converters::dcp {
namespace {

/// Larger tensors never become numbers of a catalog.
constexpr std::uint64_t kConstantElements = 1;

Json to_json(const KeyPath& path) {
  Json parts = Json::array();
  for (const PathPart& part : path) parts.push_back(Json::array({part.text, part.is_position}));
  return parts;
}

Json constant_row(const TensorEntry& entry, const Items& items) {
  std::vector<std::uint8_t> bytes(size_of(entry.dtype));
  read_elements(entry, items, {0, kConstantElements}, std::as_writable_bytes(std::span(bytes)));
  return Json::array({entry.key, to_json(entry.path), name_of(entry.dtype), entry.shape, bytes});
}

/// Whether the arrangement lost a tensor because its bytes are damaged.
bool is_damaged(const TensorEntry& entry, const Arrangement& arrangement) {
  return std::ranges::any_of(arrangement.losses, [&](const Loss& loss) {
    return loss.is_broken && loss.name == entry.key;
  });
}

KeyedContents::Constant constant_of(const Json& row) {
  const auto dtype = dtype_from_name(row[2].get<std::string>());
  if (!dtype) raise(ErrorCode::Internal, "a layout has a tensor of an unknown type");
  KeyedContents::Constant constant{*dtype, row[3].get<Shape>(), {}};
  for (const Json& byte : row[4]) constant.bytes.push_back(std::byte{byte.get<std::uint8_t>()});
  const bool is_one = std::ranges::all_of(constant.shape, [](auto size) { return size == 1; });
  if (!is_one || constant.bytes.size() != size_of(*dtype))
    raise(ErrorCode::Internal, "a constant in a layout has not one element");
  return constant;
}

/// Returns the layout by which all tensors have their keys, or null.
const OwnLayout* layout_of(const StateDict& state, const Arrangement& arrangement) {
  std::vector<std::string> keys;
  keys.reserve(arrangement.entries.size());
  for (const std::size_t entry : arrangement.entries) keys.push_back(state.tensors[entry].key);
  const auto found = std::ranges::find_if(own_layouts(), [&](const OwnLayout& layout) {
    return own_keys(arrangement.catalog, layout) == keys;
  });
  return found == own_layouts().end() ? nullptr : &*found;
}

Json describe_own(const StateDict& state, const Arrangement& arrangement) {
  const OwnLayout* const layout = layout_of(state, arrangement);
  const bool is_default = layout == nullptr || layout == &own_layouts().front();
  return is_default ? Json() : Json{{"own", layout->name}};
}

std::string label(const std::string& fqn, const std::string& state) { return fqn + '\n' + state; }

}  // namespace

Json describe_keys(const StateDict& state, const Arrangement& arrangement) {
  std::unordered_map<std::size_t, const TensorInfo*> arranged;
  for (std::size_t i = 0; i < arrangement.entries.size(); ++i)
    arranged.emplace(arrangement.entries[i], &arrangement.catalog.tensors[i]);
  for (const auto& [copy, of] : arrangement.copies) {
    if (const auto first = arranged.find(of); first != arranged.end())
      arranged.emplace(copy, first->second);
  }
  Json tensors = Json::array(), constants = Json::array();
  std::unordered_map<std::string_view, const TensorInfo*> by_key;
  const auto add = [&](const std::string& key, const KeyPath& path, const TensorInfo& info) {
    tensors.push_back(Json::array({key, to_json(path), info.fqn, info.state}));
  };
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    const TensorEntry& entry = state.tensors[i];
    if (const auto found = arranged.find(i); found != arranged.end()) {
      add(entry.key, entry.path, *found->second);
      by_key.emplace(entry.key, found->second);
    } else if (element_count(entry.shape) == kConstantElements && !is_damaged(entry, arrangement)) {
      constants.push_back(constant_row(entry, *state.items));
    }
  }
  for (const SecondKey& second : state.second_keys) {
    if (const auto found = by_key.find(second.of); found != by_key.end())
      add(second.key, second.path, *found->second);
  }
  return {{"tensors", std::move(tensors)}, {"constants", std::move(constants)}};
}

Json describe_folder(const StateDict& state, const Arrangement& arrangement) {
  if (std::ranges::count(state.objects, kTextKey, &ObjectEntry::key) > 0)
    return describe_own(state, arrangement);
  Json layout = describe_keys(state, arrangement);
  Json& objects = layout["objects"] = Json::array();
  for (const auto* entries : {&state.objects, &state.tensor_objects}) {
    for (const ObjectEntry& object : *entries)
      objects.push_back(Json::array({object.key, to_json(object.path), object.value}));
  }
  return layout;
}

std::string own_layout_in(const Json& layout) {
  return layout.is_object() ? layout.value("own", std::string()) : std::string();
}

void record_layout(const StateDict& state, Arrangement& arrangement) {
  const OwnLayout* const layout = layout_of(state, arrangement);
  Json& producer = arrangement.catalog.producer;
  if (producer.is_object()) producer.erase(std::string(kDcpFolder));  // of an earlier folder
  if (layout == nullptr || layout == &own_layouts().front()) return;
  if (producer.is_null() || producer.is_object()) producer[kKeyLayout] = layout->name;
}

std::string_view recorded_layout(const Catalog& catalog) {
  if (!catalog.producer.is_object() || !catalog.producer.contains(kKeyLayout)) return {};
  const Json& name = catalog.producer[kKeyLayout];
  const auto found = std::ranges::find_if(
      own_layouts(), [&](const OwnLayout& layout) { return name == layout.name; });
  return found == own_layouts().end() ? std::string_view() : found->name;
}

namespace {

bool is_path(const Json& path) {
  if (!path.is_array()) return path.is_null();
  return std::ranges::all_of(path, [](const Json& part) {
    return part.is_array() && part.size() == 2 && part[0].is_string() && part[1].is_boolean();
  });
}

/// Returns whether each row begins with a key and a path and has `width` members or more.
bool are_rows(const Json& rows, std::size_t width) {
  return rows.is_array() && std::ranges::all_of(rows, [&](const Json& row) {
           return row.is_array() && row.size() >= width && row[0].is_string() && is_path(row[1]);
         });
}

/// Returns whether all rows have a path or none has: a folder's planner_data has every key or none.
bool agree_on_paths(const Json& layout) {
  std::size_t rows = 0, paths = 0;
  for (const char* kind : {"tensors", "constants", "objects"}) {
    for (const Json& row : layout[kind]) {
      ++rows;
      if (!row[1].is_null()) ++paths;
    }
  }
  return paths == 0 || paths == rows;
}

}  // namespace

bool has_layout_rows(const Json& layout) {
  if (!layout.is_object() || !layout.contains("tensors") || !layout.contains("constants"))
    return false;
  return are_rows(layout["tensors"], 4) && are_rows(layout["constants"], 5) &&
         (!layout.contains("objects") || are_rows(layout["objects"], 3));
}

void record_folder(const StateDict& state, Arrangement& arrangement) {
  record_layout(state, arrangement);
  Catalog& catalog = arrangement.catalog;
  Json folder = describe_folder(state, arrangement);
  if (!catalog.producer.is_object() || !folder.is_object() || !folder.contains("objects")) return;
  folder["values"] = digest_of_values(catalog);
  std::string text = folder.dump();
  if (text.size() <= kRecordLimits.bytes)
    catalog.producer[std::string(kDcpFolder)] = std::move(text);
}

namespace {

/// Returns the folder that a catalog records; null for none, or for one of other values.
/// Throws: Json::exception or Error for what record_folder() does not make.
Json read_folder_record(const Catalog& catalog) {
  const Json text = file_record(catalog.producer, kDcpFolder);
  if (!text.is_string()) return {};
  Json folder =
      parse_json(text.get_ref<const std::string&>(), "the recorded DCP folder", kRecordLimits);
  return folder.at("values") == digest_of_values(catalog) ? folder : Json();
}

/// Throws: Json::exception or Error for a record that is none.
Json read_record(const Catalog& catalog) {
  Json recorded = file_record(catalog.producer, kStateDict);
  if (recorded.is_null()) recorded = read_folder_record(catalog);
  if (!has_layout_rows(recorded) || !recorded.contains("objects") || !agree_on_paths(recorded) ||
      !KeyedContents::match(recorded, catalog))
    return {};
  for (const Json& row : recorded["objects"]) torch::tensors_in(row[2]);
  return recorded;
}

}  // namespace

Json recorded_state_dict(const Catalog& catalog) {
  try {
    return read_record(catalog);
  } catch (const Json::exception&) {
    return {};
  } catch (const Error&) {
    return {};
  }
}

std::optional<KeyedContents> KeyedContents::match(const Json& layout, const Catalog& catalog) {
  if (!layout.is_object() || !layout.contains("tensors")) return std::nullopt;
  std::unordered_map<std::string, std::size_t> by_label;
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i)
    by_label.emplace(label(catalog.tensors[i].fqn, catalog.tensors[i].state), i);
  KeyedContents contents;
  std::unordered_set<std::size_t> used;
  for (const Json& row : layout["tensors"]) {
    const auto found = by_label.find(label(row[2].get<std::string>(), row[3].get<std::string>()));
    if (found == by_label.end()) return std::nullopt;
    contents.tensors_.emplace(row[0].get<std::string>(), found->second);
    used.insert(found->second);
  }
  if (used.size() != catalog.tensors.size()) return std::nullopt;
  for (const Json& row : layout["constants"])
    contents.constants_.emplace(row[0].get<std::string>(), constant_of(row));
  return contents;
}

void KeyedContents::add_constants(std::map<std::string, Constant> constants) {
  for (auto& [key, constant] : constants) constants_.emplace(key, std::move(constant));
}

std::optional<std::size_t> KeyedContents::tensor(const std::string& key) const {
  const auto found = tensors_.find(key);
  if (found == tensors_.end()) return std::nullopt;
  return found->second;
}

const KeyedContents::Constant* KeyedContents::constant(const std::string& key) const {
  const auto found = constants_.find(key);
  return found == constants_.end() ? nullptr : &found->second;
}

bool KeyedContents::has_all(const std::set<std::string>& keys) const {
  return std::ranges::all_of(
      keys, [&](const std::string& key) { return tensor(key) || constant(key) != nullptr; });
}

std::optional<Json> KeyedContents::writable(const Json& object,
                                            std::vector<std::string>& dropped) const {
  const auto refuse_unknown = [&](torch::PickleWriter& pickle, const std::string& key) {
    if (!tensor(key) && constant(key) == nullptr) torch::refuse_tensor(pickle, key);
    pickle.none();
  };
  std::vector<std::string> lines;
  const auto is_known = [&](const std::string& key) { return tensor(key) || constant(key); };
  auto kept = torch::without_unwritable_parts(torch::with_plain_parts(object, {}, is_known, lines),
                                              {}, lines, refuse_unknown);
  if (!kept) return std::nullopt;
  std::unordered_set<std::size_t> placed, all;
  for (const std::string& key : torch::tensors_in(*kept)) {
    if (const auto index = tensor(key)) placed.insert(*index);
  }
  for (const auto& [key, index] : tensors_) all.insert(index);
  if (placed != all) return std::nullopt;
  dropped.insert(dropped.end(), lines.begin(), lines.end());
  return kept;
}

void KeyedContents::write(const Json& object, torch::ArchiveDraft& archive) const {
  torch::write_json(archive.pickle, object, [&](torch::PickleWriter&, const std::string& key) {
    if (const auto index = tensor(key)) return archive.tensor(*index);
    const Constant& known = *constant(key);
    archive.constant(known.dtype, known.shape, known.bytes);
  });
}

KeyPath path_of_row(const Json& row) {
  KeyPath path;
  for (const Json& part : row[1]) path.push_back({part[0].get<std::string>(), part[1].get<bool>()});
  return path;
}

}  // namespace unishard::converters::dcp
