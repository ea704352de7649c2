// A save, step by step; commit.cpp of unishard::format describes the protocol.
#include "checkpoint/save.hpp"

#include "unishard/format/error.hpp"
#include "unishard/trainer/agree.hpp"

#include "checkpoint/in_parallel.hpp"

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

Save::Save(Catalog catalog, std::uint32_t rank, const SaveRequest& request,
           const EngineOptions& options)
    : catalog_(std::move(catalog)),
      rank_(rank),
      fragments_(plan_shard(catalog_, rank)),
      storage_(*options.storage),
      folder_(request.folder),
      tag_(request.tag.empty() ? "global_step" + std::to_string(catalog_.step) : request.tag),
      commit_{.move_latest = request.move_latest,
              .replace = request.replace,
              .keep_last = request.keep_last,
              .on_step = options.on_save_step},
      compression_(request.compression),
      incremental_(request.incremental) {
  catalog_.client_state = request.client_state;
  validate_sections(catalog_, "saving");
  commit_.chunk_bytes = chunk_bytes_for(catalog_, compression_);
  commit_.warn = [this](const std::string& sentence) { warn(sentence); };
}

void Save::begin(Communicator& communicator) {
  std::string id, base;
  agree(communicator, "starting the save", [&] {
    if (!is_first()) return;
    id = new_save_id();
    transaction_.emplace(storage_, folder_, tag_, id, commit_);
    if (incremental_) base = latest_tag(storage_, folder_);
  });
  save_id_ = gather_text(communicator, id).front();
  base_tag_ = gather_text(communicator, base).front();
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

void Save::commit(Communicator& communicator) {
  const std::vector<std::string> entries = gather_text(communicator, entry_);
  agree(communicator, "committing the save", [&] {
    std::vector<ShardEntry> shards;
    for (const std::string& entry : entries) {
      shards.push_back(shard_entry_from_json(parse_json(entry, "shard entry"), "shard entry"));
      written_bytes_ += shards.back().bytes;
    }
    if (!is_first()) return;
    const Manifest manifest = transaction_->complete(catalog_, std::move(shards));
    identity_ = unishard::identity(manifest.catalog).value_or("");
    transaction_->publish();
    transaction_.reset();  // other writers may have the tag from now on
  });
}

void Save::report(CommitStep step) const {
  if (commit_.on_step) commit_.on_step(step);
}

}  // namespace unishard::trainer::detail
