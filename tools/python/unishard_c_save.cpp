#include "unishard/converters/save_folder.hpp"
#include "unishard/format/commit.hpp"
#include "unishard/format/shard_base.hpp"
#include "unishard/format/shard_writer.hpp"

#include "python/c_catalog.hpp"
#include "python/c_texts.hpp"
#include "unishard_c.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace unishard {
namespace {

/// Throws: InvalidArgument when the text is no list of fragments of `catalog`.
std::vector<Fragment> fragments_from(const char* text, const Catalog& catalog) {
  const Json json = parse_json(text, "the fragments of a shard");
  std::vector<Fragment> fragments;
  try {
    for (const Json& row : json) {
      const auto number = row.at(0).get<std::uint32_t>();
      if (number >= catalog.tensors.size()) {
        raise(ErrorCode::InvalidArgument,
              fmt::format("fragment {} is of no tensor", fragments.size()));
      }
      if (row.at(1).is_array()) {
        Box box{row.at(1).get<Shape>(), row.at(2).get<Shape>()};
        fragments.push_back({number, {}, std::make_shared<const Box>(std::move(box))});
      } else {
        fragments.push_back(
            {number, {row.at(1).get<std::uint64_t>(), row.at(2).get<std::uint64_t>()}});
      }
    }
  } catch (const Json::exception& error) {
    raise(ErrorCode::InvalidArgument, fmt::format("the fragments of a shard: {}", error.what()));
  }
  return fragments;
}

struct SaveOptions {
  Compression compression;
  bool may_replace = true, move_latest = true, is_inside = false;
  std::uint32_t keep_last = 0;
  std::uint64_t commit_number = 0;
  std::string base;
};

SaveOptions options_from(const char* text) {
  const Json json = parse_json(text, "the options of a save");
  SaveOptions options;
  try {
    const std::string name = json.value("compression", "none");
    const std::optional<Compression> compression = compression_from_name(name);
    if (!compression)
      raise(ErrorCode::InvalidArgument, fmt::format("{} is no compression", quote(name)),
            "use none, zstd, auto, or a level as in zstd:3");
    options.compression = *compression;
    options.may_replace = json.value("replace", true);
    options.move_latest = json.value("move_latest", true);
    options.is_inside = json.value("inside", false);
    options.keep_last = json.value("keep_last", 0U);
    options.commit_number = json.value("commit_number", std::uint64_t{0});
    options.base = json.value("base", "");
  } catch (const Json::exception& error) {
    raise(ErrorCode::InvalidArgument, fmt::format("the options of a save: {}", error.what()));
  }
  return options;
}

/// Returns null when there is no base, or one whose chunks cannot be shared.
std::shared_ptr<const ShardBase> base_of(const SaveOptions& options, std::uint32_t rank,
                                         std::uint32_t world_size, std::uint64_t chunk_bytes) {
  if (options.base.empty()) return nullptr;
  try {
    return std::make_shared<ShardBase>(posix_storage(), options.base, rank, world_size,
                                       chunk_bytes);
  } catch (const Error&) {  // the whole shard is written then
    return nullptr;
  }
}

}  // namespace
}  // namespace unishard

struct unishard_save {
  unishard::Catalog catalog;
  unishard::Json warnings = unishard::Json::array();
  std::optional<unishard::SaveTransaction> transaction;
};

struct unishard_shard {
  unishard::Catalog catalog;
  std::optional<unishard::ShardWriter> writer;
};

using namespace unishard;
using c_interface::catalog_from;
using c_interface::guarded;
using c_interface::set_text;

char* unishard_save_begin(const char* folder, const char* tag, const char* catalog,
                          const char* options, unishard_save** out, char** place) {
  return guarded([&] {
    const SaveOptions wanted = options_from(options);
    auto save = std::make_unique<unishard_save>();
    save->catalog = catalog_from(catalog);
    validate_sections(save->catalog, "the catalog");
    if (!wanted.is_inside && wanted.move_latest)
      converters::require_own_folder(posix_storage(), folder);
    if (!wanted.is_inside && !wanted.move_latest)
      converters::require_own_place(posix_storage(), folder, tag);
    const std::string save_id = new_save_id();
    save->transaction.emplace(
        posix_storage(), folder, tag, save_id,
        CommitOptions{.chunk_bytes = chunk_bytes_for(save->catalog, wanted.compression),
                      .move_latest = wanted.move_latest,
                      .replace = wanted.may_replace,
                      .keep_last = wanted.keep_last,
                      .commit_number = wanted.commit_number,
                      .warn = [warnings = &save->warnings](const std::string& sentence) {
                        warnings->push_back(sentence);
                      }});
    set_text(place,
             {{"staging", save->transaction->staging().filename().string()}, {"save_id", save_id}});
    *out = save.release();
  });
}

char* unishard_save_describe(unishard_save* save, const char* catalog) {
  return guarded([&] {
    Catalog described = catalog_from(catalog);
    validate_sections(described, "the catalog");
    const auto is_same = [](const TensorInfo& a, const TensorInfo& b) {
      return a.label() == b.label() && a.dtype == b.dtype && a.shape == b.shape;
    };
    if (described.world_size != save->catalog.world_size ||
        !std::ranges::equal(described.tensors, save->catalog.tensors, is_same))
      raise(ErrorCode::InvalidArgument, "the save began with other tensors or another world size");
    save->catalog = std::move(described);
  });
}

char* unishard_save_publish(unishard_save* save, const char* entries, char** warnings) {
  return guarded([&] {
    std::vector<ShardEntry> shards;
    for (const Json& entry : parse_json(entries, "the shards of a save"))
      shards.push_back(shard_entry_from_json(entry, "the shards of a save"));
    save->transaction->complete(save->catalog, std::move(shards));
    save->transaction->publish();
    set_text(warnings, save->warnings);
  });
}

void unishard_save_free(unishard_save* save) { delete save; }

char* unishard_shard_begin(const char* folder, const char* place, const char* catalog,
                           uint32_t rank, const char* fragments, const char* options,
                           unishard_shard** out) {
  return guarded([&] {
    const SaveOptions wanted = options_from(options);
    const Json where = parse_json(place, "the place of a save");
    auto shard = std::make_unique<unishard_shard>();
    shard->catalog = catalog_from(catalog);
    const Catalog& tensors = shard->catalog;
    const std::uint64_t chunk_bytes = chunk_bytes_for(tensors, wanted.compression);
    const Path path = Path(folder) / where.at("staging").get<std::string>() /
                      shard_file_name(rank, tensors.world_size);
    shard->writer.emplace(posix_storage(), path, where.at("save_id").get<std::string>(), tensors,
                          rank, fragments_from(fragments, tensors),
                          ShardOptions{chunk_bytes, wanted.compression,
                                       base_of(wanted, rank, tensors.world_size, chunk_bytes)});
    *out = shard.release();
  });
}

char* unishard_shard_write(unishard_shard* shard, uint64_t fragment, uint64_t begin, uint64_t end,
                           const void* data, uint64_t bytes) {
  return guarded([&] {
    shard->writer->write(fragment, {begin, end}, {static_cast<const std::byte*>(data), bytes});
  });
}

char* unishard_shard_finish(unishard_shard* shard, char** entry) {
  return guarded([&] { set_text(entry, to_json(shard->writer->finish())); });
}

void unishard_shard_free(unishard_shard* shard) { delete shard; }
