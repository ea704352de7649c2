#include "unishard/format/shard_entry.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/version.hpp"

#include "base/json_fields.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard {

std::string DataSetEntry::name() const { return fmt::format("{}.{}", state, name_of(dtype)); }

std::uint64_t DataSetEntry::padded_bytes() const {
  return round_up(checked_mul(elements, size_of(dtype), "a data set's bytes"), kPayloadAlign,
                  "a data set's bytes");
}

std::uint64_t chunk_bytes_for(const Catalog& catalog, const Compression& compression) {
  constexpr std::uint64_t kSmallUpTo = std::uint64_t{64} << 30;
  const bool is_small =
      compression.mode == Compression::Mode::None && catalog.stored_bytes() <= kSmallUpTo;
  return is_small ? kSmallChunkBytes : kChunkBytes;
}

RowTotal total_of(const TensorInfo& tensor, std::span<const FragmentRow> rows) {
  RowTotal total;
  const std::uint64_t width = size_of(tensor.dtype), bytes = tensor.bytes();
  const bool has_boxes =
      std::ranges::any_of(rows, [](const FragmentRow& row) { return !row.box.empty(); });
  if (has_boxes) total.crc64 = crc64_zeros(bytes);
  for (const auto& [row, box, contribution] : rows) {
    total.stats.append(row->stats);
    const std::uint64_t row_bytes = row->elements * width;
    if (!has_boxes) {
      total.crc64 = crc64_combine(total.crc64, row->crc64, row_bytes);
    } else {
      total.crc64 ^= box.empty()
                         ? crc64_contribution(row->crc64, row_bytes, bytes - row->range.end * width)
                         : contribution;
    }
  }
  return total;
}

std::string shard_file_name(std::uint32_t rank, std::uint32_t world_size) {
  return fmt::format("shard-{:05}-of-{:05}.h5", rank, world_size);
}

Json to_json(const ShardEntry& entry) {
  Json data_sets = Json::array();
  for (const DataSetEntry& item : entry.data_sets) {
    Json& json = data_sets.emplace_back(Json{{"state", item.state},
                                             {"dtype", name_of(item.dtype)},
                                             {"elements", item.elements},
                                             {"chunks_offset", item.chunks_offset}});
    if (item.compressed) {
      json["filter"] = kZstdFeature;
    } else {
      json["offset"] = item.offset;
    }
    if (item.shared) json["shared"] = true;
  }
  Json json{{"file", entry.file},
            {"rank", entry.rank},
            {"bytes", entry.bytes},
            {"metadata_crc64", hex64(entry.metadata_crc64)},
            {"index_offset", entry.index_offset},
            {"index_rows", entry.index_rows},
            {"names_offset", entry.names_offset},
            {"names_bytes", entry.names_bytes},
            {"data_sets", std::move(data_sets)}};
  if (entry.boxes_bytes != 0) {
    json["boxes_offset"] = entry.boxes_offset;
    json["boxes_bytes"] = entry.boxes_bytes;
  }
  for (const BaseFile& base : entry.bases) {
    json["bases"].push_back({{"file", base.file},
                             {"save_id", base.save_id},
                             {"bytes", base.bytes},
                             {"group", base.group}});
  }
  return json;
}

namespace {

// Refuses a name that could lead outside the checkpoint's folder.
void check_file_name(const detail::Fields& fields, const std::string& name) {
  if (name.empty() || name.size() > 255 || name.front() == '.' ||
      name.find('/') != std::string::npos || name.find('\0') != std::string::npos) {
    fields.fail("file", fmt::format("{} is not a plain file name inside the checkpoint's folder",
                                    quote(name)));
  }
}

DataSetEntry data_set_from_json(const Json& json, const std::string& where,
                                std::uint64_t file_bytes) {
  const detail::Fields fields(json, where);
  DataSetEntry entry;
  entry.state = fields.text("state");
  const auto dtype = dtype_from_name(fields.text("dtype"));
  if (!dtype)
    fields.fail("dtype",
                fmt::format("{} is not a known element type", quote(fields.text("dtype"))));
  entry.dtype = *dtype;
  entry.elements = fields.u64("elements", std::uint64_t{1} << 62);
  entry.chunks_offset = fields.u64("chunks_offset", file_bytes);
  if (entry.elements == 0) fields.fail("elements", "is 0");
  if (fields.has("filter")) {
    if (fields.text("filter") != kZstdFeature)
      fields.fail("filter", fmt::format("{} is not known here", quote(fields.text("filter"))));
    entry.compressed = true;
    entry.shared = fields.has("shared") && fields.boolean("shared");
    entry.padded_bytes();  // must not overflow; the chunk table shows whether the file holds it
    return entry;
  }
  if (fields.has("shared")) fields.fail("shared", "is for data sets with a filter");
  entry.offset = fields.u64("offset", file_bytes);
  if (entry.offset % kPayloadAlign != 0)
    fields.fail("offset", fmt::format("{} is not a multiple of {}", entry.offset, kPayloadAlign));
  if (checked_add(entry.offset, entry.padded_bytes(), "a data set's end") > file_bytes) {
    fields.fail("elements",
                fmt::format("the data set ends beyond the file's {} bytes", file_bytes));
  }
  return entry;
}

BaseFile base_from_json(const Json& json, const std::string& where) {
  const detail::Fields fields(json, where);
  BaseFile base{fields.text("file"), fields.save_id(), 0, fields.text("group")};
  check_file_name(fields, base.file);
  base.bytes = fields.u64("bytes", std::uint64_t{1} << 62);
  if (base.group != "data" && base.group != "fresh")
    fields.fail("group", fmt::format("{} is neither data nor fresh", quote(base.group)));
  return base;
}

}  // namespace

ShardEntry shard_entry_from_json(const Json& json, std::string_view where) {
  const detail::Fields fields(json, std::string(where));
  ShardEntry entry;
  entry.file = fields.text("file");
  check_file_name(fields, entry.file);
  entry.rank = static_cast<std::uint32_t>(fields.u64("rank", limits::kWorldSize));
  entry.bytes = fields.u64("bytes", std::uint64_t{1} << 62);
  const auto crc = parse_hex64(fields.text("metadata_crc64"));
  if (!crc) fields.fail("metadata_crc64", "must have 16 lower-case hexadecimal digits");
  entry.metadata_crc64 = *crc;
  entry.index_offset = fields.u64("index_offset", entry.bytes);
  entry.index_rows =
      fields.u64("index_rows", std::min(entry.bytes / kIndexRowBytes, limits::kIndexRows));
  entry.names_offset = fields.u64("names_offset", entry.bytes);
  entry.names_bytes = fields.u64("names_bytes", entry.bytes);
  if (fields.has("boxes_bytes")) {
    entry.boxes_offset = fields.u64("boxes_offset", entry.bytes);
    entry.boxes_bytes = fields.u64("boxes_bytes", std::min(entry.bytes, limits::kBoxesBytes));
    if (entry.boxes_bytes == 0 || entry.boxes_bytes % sizeof(std::uint64_t) != 0)
      fields.fail("boxes_bytes", "is not a multiple of 8 above 0");
  }
  std::size_t number = 0;
  for (const Json& item : fields.array("data_sets", limits::kDataSetsPerShard)) {
    entry.data_sets.push_back(
        data_set_from_json(item, fmt::format("{}.data_sets[{}]", where, number++), entry.bytes));
  }
  if (!fields.has("bases")) return entry;
  number = 0;
  for (const Json& item : fields.array("bases", limits::kBasesPerShard))
    entry.bases.push_back(base_from_json(item, fmt::format("{}.bases[{}]", where, number++)));
  return entry;
}

}  // namespace unishard
