// A save, step by step; commit.cpp of unishard::format describes the protocol.
//
// Where each node has a folder of its own, the first rank of each node, its leader, has a
// SaveTransaction there, and the protocol is this:
// clang-format off
//  1. All ranks write their shards to the staging folder of their node.
//  2. Each leader reads the tables of its node's shards back and sends them to rank 0, which
//     combines the digests of all and writes the manifest.
//  3. The other leaders write the same manifest. From now on a staging folder is kept: a complete one
//     is on every node.
//  4. Rank 0 publishes the tag on its node: this is the commit. Then the other leaders publish it.
//     After a crash between the two, finish_publishing() does the rest.
//  5. When it is published on every node, each removes what is older.
// clang-format on
#include "checkpoint/save.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/node_shards.hpp"
#include "unishard/trainer/agree.hpp"

#include "checkpoint/in_parallel.hpp"
#include "checkpoint/node_folders.hpp"

#include <algorithm>

namespace unishard::trainer::detail {
namespace {

std::string latest_tag(Storage& storage, const Path& folder) {
  try {
    return read_latest(storage, folder).value_or("");
  } catch (const Error&) {  // it will be replaced
    return {};
  }
}

}  // namespace

Save::Save(Catalog catalog, std::uint32_t rank, Nodes nodes, const SaveRequest& request,
           const EngineOptions& options)
    : catalog_(std::move(catalog)),
      rank_(rank),
      nodes_(std::move(nodes)),
      fragments_(plan_shard(catalog_, rank)),
      storage_(*options.storage),
      all_nodes_(storage_),
      folder_(request.folder),
      tag_(request.tag.empty() ? "global_step" + std::to_string(catalog_.step) : request.tag),
      commit_{.move_latest = request.move_latest,
              .replace = request.replace,
              .keep_last = request.keep_last,
              .on_step = options.on_save_step},
      compression_(request.compression),
      incremental_(request.incremental) {
  catalog_.client_state = request.client_state;
  record_nodes(catalog_, nodes_.names());
  validate_sections(catalog_, "saving");
  commit_.chunk_bytes = chunk_bytes_for(catalog_, compression_);
  commit_.warn = [this](const std::string& sentence) { warn(sentence); };
}

void Save::begin(Communicator& communicator) {
  std::string id, base;
  agree(communicator, "naming the save", [&] {
    if (is_first()) id = new_save_id();
  });
  save_id_ = gather_text(communicator, id).front();
  if (!nodes_.is_one()) reserve_commit_number(communicator);
  agree(communicator, "starting the save", [&] {
    if (!is_leader()) return;
    transaction_.emplace(is_first() ? all_nodes_ : storage_, folder_, tag_, save_id_, commit_);
    if (incremental_) base = latest_tag(storage_, folder_);
  });
  base_tag_ = gather_text(communicator, base)[nodes_.leader_of(rank_)];
}

/// The manifest is the same on all nodes, and so is the number in it.
void Save::reserve_commit_number(Communicator& communicator) {
  std::int64_t next = 0;
  agree(communicator, "numbering the save", [&] {
    if (!is_leader() || storage_.kind(folder_) == EntryKind::Missing) return;
    next = static_cast<std::int64_t>(next_commit_number(storage_, folder_));
  });
  commit_.commit_number =
      static_cast<std::uint64_t>(agree_max(communicator, std::max<std::int64_t>(1, next)));
}

SaveReport Save::finish(Communicator& communicator, const GiveFragment& give) {
  try {
    write_shard(communicator, give);
    commit(communicator);
  } catch (...) {
    abandon();
    throw;
  }
  return {.tag = tag_,
          .folder = (folder_ / tag_).string(),
          .identity = identity_,
          .bytes = catalog_.stored_bytes(),
          .written_bytes = written_bytes_,
          .warnings = warnings_};
}

void Save::abandon() noexcept { transaction_.reset(); }

/// Returns null when there is no checkpoint to share chunks with. A checkpoint that cannot be read
/// is no reason to fail: its chunks are written again.
std::shared_ptr<const ShardBase> Save::open_base() const {
  if (base_tag_.empty()) return nullptr;
  try {
    return std::make_shared<ShardBase>(storage_, folder_ / base_tag_, rank_, catalog_.world_size,
                                       commit_.chunk_bytes);
  } catch (const Error&) {
    return nullptr;
  }
}

void Save::write_shard(Communicator& communicator, const GiveFragment& give) {
  agree(communicator, "writing a shard", [&] {
    const Path path =
        staging_folder(folder_, tag_, save_id_) / shard_file_name(rank_, catalog_.world_size);
    report(CommitStep::WriteShard);
    ShardWriter writer(storage_, path, save_id_, catalog_, rank_, fragments_,
                       {commit_.chunk_bytes, compression_, open_base()});
    in_parallel(
        fragments_.size(), [&](std::size_t index) { give(writer, index); }, kWriters);
    report(CommitStep::SyncShard);
    entry_ = to_json(writer.finish()).dump();
  });
}

std::vector<ShardEntry> Save::gather_entries(Communicator& communicator) {
  std::vector<ShardEntry> shards;
  for (const std::string& entry : gather_text(communicator, entry_)) {
    shards.push_back(shard_entry_from_json(parse_json(entry, "shard entry"), "shard entry"));
    written_bytes_ += shards.back().bytes;
  }
  return shards;
}

void Save::commit(Communicator& communicator) {
  std::vector<ShardEntry> shards = gather_entries(communicator);
  if (!nodes_.is_one()) collect_tables(communicator, shards);
  std::string manifest;
  agree(communicator, "committing the save", [&] {
    if (!is_first()) return;
    const Manifest complete = transaction_->complete(catalog_, std::move(shards));
    identity_ = unishard::identity(complete.catalog).value_or("");
    if (!nodes_.is_one()) {
      manifest = encode_manifest(complete);
      return;
    }
    transaction_->publish();
    transaction_.reset();  // other writers may have the tag from now on
  });
  if (!nodes_.is_one()) publish_on_nodes(communicator, manifest);
}

/// Lets rank 0 read the tables of all shards back, each by the leader that sees its file.
void Save::collect_tables(Communicator& communicator, const std::vector<ShardEntry>& shards) {
  const Path staging = staging_folder(folder_, tag_, save_id_);
  const auto read_back = [&](Storage& storage) {
    for (const ShardEntry& entry : shards) {
      if (nodes_.leader_of(entry.rank) != rank_) continue;
      ShardReader(storage, staging / entry.file, entry, save_id_, catalog_, commit_.chunk_bytes);
    }
  };
  std::vector<FileExcerpt> tables =
      share_tables(communicator, nodes_, storage_, staging, read_back);
  if (!is_first()) return;
  for (FileExcerpt& each : tables) add_excerpt(all_nodes_, staging, std::move(each));
}

void Save::publish_on_nodes(Communicator& communicator, const std::string& manifest) {
  const std::string text = broadcast_text(communicator, manifest, 0);
  const auto on_leaders = [&](const std::string& what, const auto& act) {
    agree(communicator, what, [&] {
      if (is_leader()) act();
    });
  };
  on_leaders("writing the manifest of each node", [&] {
    if (!is_first()) transaction_->complete_part(decode_manifest(text, "the manifest of rank 0"));
    transaction_->keep_staging();
  });
  on_leaders("publishing on the first node", [&] {
    if (is_first()) transaction_->publish_tag();
  });
  on_leaders("publishing on every node", [&] {
    if (!is_first()) transaction_->publish_tag();
  });
  on_leaders("removing what is older", [&] {
    transaction_->retain();
    transaction_.reset();
  });
  gather_warnings(communicator);
}

/// Gives rank 0 the warnings of the other nodes.
void Save::gather_warnings(Communicator& communicator) {
  std::string mine;
  if (!is_first())
    for (const std::string& warning : warnings_) mine += warning + '\0';
  for (const std::string& theirs : gather_text(communicator, mine)) {
    if (!is_first()) continue;
    for (std::size_t begin = 0; begin < theirs.size(); begin = theirs.find('\0', begin) + 1)
      warn(theirs.substr(begin, theirs.find('\0', begin) - begin));
  }
}

void Save::report(CommitStep step) const {
  if (commit_.on_step) commit_.on_step(step);
}

}  // namespace unishard::trainer::detail
