#include "unishard/format/manifest.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/staging_names.hpp"
#include "unishard/format/utf8.hpp"
#include "unishard/format/version.hpp"

#include "base/json_fields.hpp"
#include "base/json_items.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <unordered_set>

namespace unishard {
namespace {

using detail::Fields;

constexpr std::string_view kHead = "{\"crc64\":\"";
constexpr std::string_view kHeadEnd = "\",\n";
constexpr std::size_t kHeadBytes = kHead.size() + 16 + kHeadEnd.size();

// JSON has no infinity: a sum that exceeds the range of double is written as the largest double.
double finite(double value) {
  return std::clamp(value, -std::numeric_limits<double>::max(), std::numeric_limits<double>::max());
}

Json to_json(const Alias& alias) { return {{"fqn", alias.fqn}, {"target", alias.target}}; }

Json to_json(const UnitLayout& unit) { return {{"name", unit.name}, {"fqns", unit.fqns}}; }

Json to_json(const TensorInfo& tensor) {
  Json json = {{"fqn", tensor.fqn},
               {"state", tensor.state},
               {"dtype", name_of(tensor.dtype)},
               {"shape", tensor.shape}};
  if (tensor.group >= 0) json["group"] = tensor.group;
  if (tensor.frozen) json["frozen"] = true;
  if (tensor.derived) json["derived"] = true;
  if (tensor.crc64) json["crc64"] = hex64(*tensor.crc64);
  if (tensor.stats && tensor.stats->count > 0) {
    const Stats& stats = *tensor.stats;
    json["stats"] = {{"nan", stats.nan_count},
                     {"inf", stats.inf_count},
                     {"min", finite(stats.min)},
                     {"max", finite(stats.max)},
                     {"sum_squares", finite(stats.sum_squares)}};
  }
  return json;
}

Stats stats_from_json(const Json& json, const std::string& where, std::uint64_t elements) {
  const Fields fields(json, where);
  Stats stats;
  stats.count = elements;
  stats.nan_count = fields.u64("nan", elements);
  stats.inf_count = fields.u64("inf", elements - stats.nan_count);
  stats.min = fields.number("min");
  stats.max = fields.number("max");
  stats.sum_squares = fields.number("sum_squares");
  return stats;
}

TensorInfo tensor_from_json(const Json& json, const std::string& where) {
  const Fields fields(json, where);
  TensorInfo tensor;
  tensor.fqn = fields.text("fqn");
  tensor.state = fields.text("state");
  const auto dtype = dtype_from_name(fields.text("dtype"));
  if (!dtype)
    fields.fail("dtype",
                fmt::format("{} is not a known element type", quote(fields.text("dtype"))));
  tensor.dtype = *dtype;
  for (const Json& dimension : fields.array("shape", limits::kDimensions)) {
    if (!dimension.is_number_unsigned()) fields.fail("shape", "must hold non-negative integers");
    tensor.shape.push_back(dimension.get<std::uint64_t>());
  }
  try {
    tensor.bytes();
  } catch (const Error& error) {
    throw error.with_context(where + ".shape: ");
  }
  if (fields.has("group"))
    tensor.group = static_cast<std::int32_t>(fields.i64("group", 0, 1'000'000));
  if (fields.has("frozen")) tensor.frozen = fields.boolean("frozen");
  if (fields.has("derived")) tensor.derived = fields.boolean("derived");
  tensor.crc64 = parse_hex64(fields.text("crc64"));
  if (!tensor.crc64) fields.fail("crc64", "must have 16 lower-case hexadecimal digits");
  if (fields.has("stats"))
    tensor.stats = stats_from_json(fields.at("stats"), where + ".stats", tensor.elements());
  return tensor;
}

std::vector<std::string> names_from_json(const Fields& fields, std::string_view key) {
  std::vector<std::string> names;
  for (const Json& item : fields.array(key, limits::kTensors)) {
    if (!item.is_string()) fields.fail(key, "must hold strings");
    names.push_back(item.get<std::string>());
  }
  return names;
}

/// Appends one item per line. Each item is a JSON tree only until its line is written.
template <class Item>
void append_lines(std::string& out, std::string_view key, const std::vector<Item>& items) {
  out += fmt::format("\"{}\":[", key);
  std::string_view separator = "\n ";
  for (const Item& item : items) {
    out += separator;
    out += to_json(item).dump();
    separator = ",\n ";
  }
  out += "],\n";
}

Json optional_section(const Fields& fields, std::string_view key) {
  return fields.has(key) ? fields.at(key) : Json();
}

// `items` are the texts of the tensors. Each is a JSON tree only while it is read.
void read_tensors(const Fields& fields, std::span<const std::string_view> items, Catalog& catalog) {
  fields.array("tensors", limits::kTensors);
  fields.check_count("tensors", items.size(), limits::kTensors);
  // The text of a tensor is longer than this, so a hostile file reserves a few times its size.
  constexpr std::size_t kTensorText = 64;
  std::size_t text_bytes = 0;
  for (const std::string_view item : items) text_bytes += item.size();
  catalog.tensors.reserve(std::min(items.size(), text_bytes / kTensorText));
  for (std::size_t i = 0; i < items.size(); ++i) {
    catalog.tensors.push_back(
        tensor_from_json(Json::parse(items[i]), fmt::format("{}.tensors[{}]", fields.path(), i)));
  }
}

void read_catalog(const Fields& fields, Catalog& catalog) {
  std::size_t number = 0;
  for (const Json& item : fields.array("aliases", limits::kTensors)) {
    const Fields alias(item, fmt::format("{}.aliases[{}]", fields.path(), number++));
    catalog.aliases.push_back({alias.text("fqn"), alias.text("target")});
  }
  number = 0;
  for (const Json& item : fields.array("units", limits::kTensors)) {
    const Fields unit(item, fmt::format("{}.units[{}]", fields.path(), number++));
    catalog.units.push_back({unit.text("name"), names_from_json(unit, "fqns")});
  }
  catalog.step = fields.i64("step", 0, std::numeric_limits<std::int64_t>::max());
  catalog.world_size = static_cast<std::uint32_t>(fields.u64("world_size", limits::kWorldSize));
  catalog.stage = static_cast<std::uint32_t>(fields.u64("stage", 3));
  catalog.groups = optional_section(fields, "groups");
  catalog.scheduler = optional_section(fields, "scheduler");
  catalog.loss_scaler = optional_section(fields, "loss_scaler");
  catalog.data_position = optional_section(fields, "data_position");
  catalog.rng = optional_section(fields, "rng");
  catalog.client_state = optional_section(fields, "client_state");
  catalog.config = optional_section(fields, "config");
  catalog.producer = optional_section(fields, "producer");
}

void read_shards(const Fields& fields, Manifest& manifest) {
  std::unordered_set<std::string> files;
  for (const Json& item : fields.array("shards", limits::kWorldSize)) {
    const std::size_t rank = manifest.shards.size();
    const std::string where = fmt::format("{}.shards[{}]", fields.path(), rank);
    manifest.shards.push_back(shard_entry_from_json(item, where));
    const ShardEntry& entry = manifest.shards.back();
    if (entry.rank != rank)
      raise(ErrorCode::Corrupt, fmt::format("{}.rank: is {}, not {}", where, entry.rank, rank));
    if (!files.insert(entry.file).second)
      raise(ErrorCode::Corrupt,
            fmt::format("{}.file: {} is named twice", where, quote(entry.file)));
  }
  if (manifest.shards.size() != manifest.catalog.world_size) {
    raise(ErrorCode::Corrupt, fmt::format("{}.shards: {} shards for world size {}", fields.path(),
                                          manifest.shards.size(), manifest.catalog.world_size));
  }
}

// The version is checked first, because a newer version may change the meaning of any other field.
void check_version(const Fields& fields) {
  if (fields.text("format") != kFormatName)
    fields.fail("format", fmt::format("{} is not {}", quote(fields.text("format")), kFormatName));
  const std::uint64_t version = fields.u64("version");
  if (version < kOldestReadableVersion || version > kFormatVersion) {
    raise(ErrorCode::Unsupported,
          fmt::format("{}.version: {}; this program reads versions {} to {}", fields.path(),
                      version, kOldestReadableVersion, kFormatVersion),
          "use a newer UniShard");
  }
  for (const std::string& feature : names_from_json(fields, "required_features")) {
    if (feature == kZstdFeature || feature == kSharedFeature || feature == kBoxesFeature) continue;
    raise(ErrorCode::Unsupported,
          fmt::format("{}.required_features: {} is not known here", fields.path(), quote(feature)),
          "use a newer UniShard");
  }
}

Json required_features(const Manifest& manifest) {
  const auto is_used = [&](bool DataSetEntry::*how) {
    return std::ranges::any_of(manifest.shards, [&](const ShardEntry& shard) {
      return std::ranges::any_of(shard.data_sets, how);
    });
  };
  Json features = Json::array();
  if (is_used(&DataSetEntry::compressed)) features.push_back(kZstdFeature);
  if (is_used(&DataSetEntry::shared)) features.push_back(kSharedFeature);
  if (std::ranges::any_of(manifest.shards, &ShardEntry::boxes_bytes))
    features.push_back(kBoxesFeature);
  return features;
}

/// Other readers look at the features alone.
void check_features_named(const Fields& fields, const Manifest& manifest) {
  const std::vector<std::string> named = names_from_json(fields, "required_features");
  for (const Json& used : required_features(manifest)) {
    if (std::ranges::find(named, used.get<std::string>()) == named.end())
      fields.fail("required_features", fmt::format("lacks {}, which a shard has", used.dump()));
  }
}

}  // namespace

std::string encode_manifest(const Manifest& manifest) {
  const Catalog& catalog = manifest.catalog;
  std::string text = fmt::format("{}{}{}", kHead, hex64(0), kHeadEnd);
  const auto member = [&](std::string_view key, const Json& value) {
    text += fmt::format("\"{}\":{},\n", key, value.dump());
  };
  member("format", kFormatName);
  if (manifest.commit_number > 0) member("commit_number", manifest.commit_number);
  member("version", kFormatVersion);
  member("required_features", required_features(manifest));
  member("save_id", manifest.save_id);
  member("tag", manifest.tag);
  member("saved_unix_seconds", manifest.saved_unix_seconds);
  member("step", catalog.step);
  member("world_size", catalog.world_size);
  member("stage", catalog.stage);
  member("identity", identity(catalog).value_or(""));
  member("chunk_bytes", manifest.chunk_bytes);
  append_lines(text, "tensors", catalog.tensors);
  append_lines(text, "aliases", catalog.aliases);
  append_lines(text, "units", catalog.units);
  const std::pair<std::string_view, const Json*> sections[] = {
      {"groups", &catalog.groups},
      {"scheduler", &catalog.scheduler},
      {"loss_scaler", &catalog.loss_scaler},
      {"data_position", &catalog.data_position},
      {"rng", &catalog.rng},
      {"client_state", &catalog.client_state},
      {"config", &catalog.config},
      {"producer", &catalog.producer}};
  for (const auto& [key, value] : sections) {
    if (!value->is_null()) member(key, *value);
  }
  append_lines(text, "shards", manifest.shards);
  text.replace(text.size() - 2, 2, "\n}\n");
  const std::uint64_t digest = crc64(std::string_view(text).substr(kHeadBytes));
  text.replace(kHead.size(), 16, hex64(digest));
  return text;
}

Manifest decode_manifest(std::string_view text, std::string_view where) {
  const auto crc =
      text.size() > kHeadBytes ? parse_hex64(text.substr(kHead.size(), 16)) : std::nullopt;
  if (!crc || !text.starts_with(kHead) ||
      text.substr(kHead.size() + 16, kHeadEnd.size()) != kHeadEnd) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: the first line is not {}<16 hexadecimal digits>\",", where, kHead),
          "the file is damaged or was edited: use a copy or another checkpoint");
  }
  if (crc64(text.substr(kHeadBytes)) != *crc) {
    raise(
        ErrorCode::Corrupt,
        fmt::format("{}: bytes {} to {} do not match the checksum in the first line (field crc64)",
                    where, kHeadBytes, text.size()),
        "the file is damaged or was edited: use a copy or another checkpoint");
  }
  std::vector<std::string_view> tensors;
  const Json json = detail::parse_json_but_items(text, "tensors", tensors, where,
                                                 {.bytes = limits::kManifestBytes});
  const Fields fields(json, std::string(where));
  check_version(fields);
  Manifest manifest;
  manifest.save_id = fields.save_id();
  manifest.tag = fields.text("tag");
  if (fields.has("commit_number"))
    manifest.commit_number = fields.u64("commit_number", limits::kCommitNumber);
  manifest.saved_unix_seconds =
      fields.i64("saved_unix_seconds", 0, std::numeric_limits<std::int64_t>::max());
  manifest.chunk_bytes = fields.u64("chunk_bytes", limits::kChunkBytesMax);
  if (manifest.chunk_bytes < limits::kChunkBytesMin || manifest.chunk_bytes % kPayloadAlign != 0) {
    fields.fail("chunk_bytes",
                fmt::format("{} is not a multiple of {}", manifest.chunk_bytes, kPayloadAlign));
  }
  read_tensors(fields, tensors, manifest.catalog);
  read_catalog(fields, manifest.catalog);
  validate(manifest.catalog, where);
  read_shards(fields, manifest);
  check_features_named(fields, manifest);
  if (fields.text("identity") != identity(manifest.catalog))
    fields.fail("identity", "does not follow from the tensors");
  return manifest;
}

bool is_own_file(std::string_view name) {
  const bool is_container = name.ends_with(".h5");
  return name == kManifestFile || name == kHiddenManifestFile ||
         (is_container && (name.starts_with("shard-") || name.starts_with("base-")));
}

void validate_tag(std::string_view tag) {
  const auto refuse = [&](std::string_view rule) {
    raise(ErrorCode::InvalidArgument, fmt::format("tag {}: {}", quote(tag), rule),
          "choose another tag, for example global_step100");
  };
  if (tag.empty()) refuse("must not be empty");
  if (tag.size() > limits::kTagBytes)
    refuse(fmt::format("is longer than {} bytes", limits::kTagBytes));
  if (tag.front() == '.') refuse("must not begin with a dot");
  if (!valid_utf8(tag)) refuse("is not UTF-8");
  for (const char c : tag) {
    if (c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      refuse("must not contain '/' or control characters");
  }
  if (tag == "latest" || tag == "latest.writing" || tag == kManifestFile || is_leftover(tag))
    refuse("is a name that UniShard uses itself");
}

Manifest read_manifest(Storage& storage, const Path& tag_folder) {
  const Path path = tag_folder / kManifestFile;
  return decode_manifest(read_text(storage, path, limits::kManifestBytes), path.native());
}

}  // namespace unishard
