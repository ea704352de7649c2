// The commit protocol. A reader sees a checkpoint exactly when `<tag>/manifest.json` exists, and
// every byte that the manifest's checksums cover is on disk before that.
//
// clang-format off
//  0. Rank 0 locks the tag by `.<tag>.lock`, which excludes other writers until the save has ended.
//     It refuses a name that anything other than a UniShard checkpoint has.
//  1. Rank 0 creates the staging folder `<tag>.partial-<save id>`. Readers skip such names, so
//     nothing is visible yet.
//  2. Each rank writes its shard there (ShardWriter). Every shard contains the save id, so files of
//     two saves cannot be mixed.
//  3. Each rank syncs and closes its shard and checks both results. Then the ranks agree. If one
//     failed, rank 0 destroys its SaveTransaction and all throw.
//  4. Rank 0 reads the tables of every shard back from the file system, which detects lost or
//     misdirected writes. It syncs the staging folder, so that the shards' names survive a crash.
//  5. Rank 0 writes the manifest under another name and syncs it, so that a crash leaves no
//     incomplete manifest under the real name.
//  6. Rank 0 renames it to manifest.json and syncs the staging folder.
//  7. Rank 0 locks `latest` and writes its new text to a file beside it; if that fails, the tag is
//     not published. Then it renames the staging folder to `<tag>`, which must not exist. This is
//     the commit. If `<tag>` is a UniShard checkpoint, the two folders are exchanged in one atomic
//     step instead; the old one then has the staging name and is removed in step 10.
//  8. Rank 0 syncs the parent folder: the commit is durable.
//  9. Rank 0 renames the new text to `latest` and syncs the folder. A crash before that leaves
//     `latest` on the older checkpoint, which is complete.
// 10. Retention: hide (rename), then delete, so that a crash never leaves an incomplete checkpoint
//     under a tag. A failure here does not fail the save.
// clang-format on
#include "unishard/format/commit.hpp"

#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"

#include "checkpoint/sweep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

namespace unishard {
namespace {

/// Returns true for a file without any text, as a crash of the system can leave it.
bool is_blank(Storage& storage, const Path& file) {
  if (storage.open(file)->size() > limits::kTagBytes) return false;
  const std::string text = read_text(storage, file, limits::kTagBytes);
  return text.find_first_not_of('\0') == std::string::npos;
}

/// Returns the tag that the file `latest` names, if it names one. A file with other content will be
/// replaced; something that is not a file cannot be.
std::optional<std::string> readable_latest(Storage& storage, const Path& folder) {
  try {
    return read_latest(storage, folder);
  } catch (const Error&) {
    if (storage.kind(folder / kLatestFile) != EntryKind::File) throw;
    return std::nullopt;
  }
}

/// Throws AlreadyExists when `latest`, the text of the file, names what UniShard did not write.
void require_own_tag(Storage& storage, const Path& folder,
                     const std::optional<std::string>& latest) {
  if (!latest || storage.kind(folder / *latest) == EntryKind::Missing ||
      detail::holds_own_file(storage, folder / *latest)) {
    return;
  }
  raise(ErrorCode::AlreadyExists,
        fmt::format("{} names {}, which is not a UniShard checkpoint",
                    (folder / kLatestFile).native(), quote(*latest)),
        "another program uses this folder: write to another one; nothing was written");
}

/// The rows of all shards, kept while the next shards are read.
class KeptRows {
 public:
  explicit KeptRows(std::size_t tensors) : rows_(tensors) {}

  void add(const FragmentRow& fragment) {
    IndexRow& row = rows_[fragment.row->tensor].emplace_back(*fragment.row);
    if (fragment.box.empty()) return;
    boxes_.push_back({fragment.box.owned(), fragment.contribution});
    row.box = static_cast<std::uint32_t>(boxes_.size());
  }
  /// Returns the fragments of a tensor in the order of their first elements.
  /// Lifetime: the result is valid until the next call of a member.
  std::vector<FragmentRow> of(std::size_t tensor) {
    std::ranges::sort(rows_[tensor], {}, &IndexRow::range);
    std::vector<FragmentRow> fragments;
    for (const IndexRow& row : rows_[tensor]) {
      const Kept* const kept = row.box == 0 ? nullptr : &boxes_[row.box - 1];
      fragments.push_back(kept ? FragmentRow{&row, kept->box, kept->contribution}
                               : FragmentRow{&row});
    }
    return fragments;
  }

 private:
  struct Kept {
    Box box;
    std::uint64_t contribution = 0;
  };
  std::vector<std::vector<IndexRow>> rows_;  ///< [tensor]; IndexRow::box is 1 + its place in boxes_
  std::vector<Kept> boxes_;
};

// Combines tensor digests and statistics from the shards' tables as they are on disk. Opening a
// shard checks it.
void combine_digests(Storage& storage, const Path& staging, Manifest& manifest) {
  KeptRows kept(manifest.catalog.tensors.size());
  for (const ShardEntry& entry : manifest.shards) {
    const ShardReader shard(storage, staging / entry.file, entry, manifest.save_id,
                            manifest.catalog, manifest.chunk_bytes);
    for (std::size_t i = 0; i < shard.rows().size(); ++i) kept.add(shard.fragment(i));
  }
  for (std::size_t i = 0; i < manifest.catalog.tensors.size(); ++i) {
    TensorInfo& tensor = manifest.catalog.tensors[i];
    const std::vector<FragmentRow> rows = kept.of(i);
    std::vector<HeldPart> parts;
    parts.reserve(rows.size());
    for (const FragmentRow& row : rows) parts.push_back(row.held());
    const std::string label = fmt::format("{}: tensor {}", staging.native(), tensor.label());
    if (const auto fault = find_coverage_fault(tensor.shape, parts, label)) {
      raise(ErrorCode::Internal,
            fmt::format("{}: the shards do not hold each element once (element {} is {})", label,
                        fault->range.begin, fault->is_missing ? "missing" : "stored twice"));
    }
    const RowTotal total = total_of(tensor, rows);
    tensor.crc64 = total.crc64;
    tensor.stats = total.stats;
  }
}

/// Reports a moved staging folder as such, before readers report the missing files as damage.
void require_staging(Storage& storage, const Path& staging) {
  if (storage.kind(staging) == EntryKind::Directory) return;
  raise(ErrorCode::Io,
        fmt::format("{} was moved or removed while a checkpoint was being written to it",
                    staging.native()),
        "do not move or remove the folder of a running save; nothing was published");
}

void check_identity(const Manifest& manifest, const Path& staging, const std::string& expected) {
  const std::string written = identity(manifest.catalog).value_or("none");
  if (written == expected) return;
  raise(ErrorCode::Corrupt,
        fmt::format("{}: what was written has identity {}, the source has {}", staging.native(),
                    written, expected),
        "nothing was published; run `unishard verify --deep` on the source, and suspect the memory "
        "of this machine if it is sound");
}

/// Returns a tensor of the trained state, that is, an fp32 state or one in a group, with NaN or
/// infinity; null when there is none.
const TensorInfo* find_not_finite(const Catalog& catalog) {
  const auto found = std::ranges::find_if(catalog.tensors, [](const TensorInfo& tensor) {
    const bool is_trained = tensor.state == state::kFp32 || tensor.group >= 0;
    return is_trained && tensor.stats && tensor.stats->nan_count + tensor.stats->inf_count > 0;
  });
  return found == catalog.tensors.end() ? nullptr : &*found;
}

/// Returns what a trained state holds that is no number; empty for none.
std::string describe_not_finite(const Catalog& catalog) {
  const TensorInfo* const tensor = find_not_finite(catalog);
  if (tensor == nullptr || !tensor->stats) return {};
  return fmt::format("{} holds {} NaN and {} infinite values", tensor->label(),
                     tensor->stats->nan_count, tensor->stats->inf_count);
}

void write_synced(Storage& storage, const Path& path, const std::string& text) {
  const auto file = storage.create(path);
  file->write_at(0, std::as_bytes(std::span(text)));
  file->sync();
  file->close();
}

}  // namespace

Path staging_folder(const Path& folder, std::string_view tag, const std::string& save_id) {
  return folder / marked_name(tag, kPartialMark, save_id);
}

void require_no_checkpoint_around(Storage& storage, const Path& folder) {
  const Path whole = std::filesystem::absolute(folder).lexically_normal();
  for (Path around = whole; around.has_relative_path(); around = around.parent_path()) {
    if (storage.kind(around / kManifestFile) != EntryKind::File) continue;
    if (checkpoint_stamp(storage, around).find("\"format\":\"unishard\"") == std::string::npos)
      continue;
    raise(ErrorCode::AlreadyExists,
          fmt::format("{} is a checkpoint, so no other one can be saved in it", around.native()),
          "choose a folder beside it; nothing was written");
  }
}

void require_own_latest(Storage& storage, const Path& folder) {
  const Path path = folder / kLatestFile;
  const std::optional<std::string> latest = readable_latest(storage, folder);
  if (!latest && storage.kind(path) == EntryKind::File && !is_blank(storage, path)) {
    raise(ErrorCode::AlreadyExists,
          fmt::format("{} does not hold the name of a checkpoint", path.native()),
          "somebody else uses this file: move it away, or write to another folder; nothing was "
          "written");
  }
  require_own_tag(storage, folder, latest);
}

void require_replaceable(Storage& storage, const Path& folder, std::string_view tag,
                         bool may_replace) {
  const Path path = folder / tag;
  if (storage.kind(folder) == EntryKind::Missing) return;
  const std::vector<Entry> entries = storage.list(folder);
  if (std::ranges::find(entries, tag, &Entry::name) == entries.end()) return;
  if (!is_unishard_checkpoint(storage, path)) {
    raise(ErrorCode::AlreadyExists,
          fmt::format("{} is there already and is not a UniShard checkpoint", path.native()),
          "UniShard replaces nothing but its own checkpoints: move it away, or choose another "
          "folder or tag");
  }
  if (may_replace) return;
  raise(ErrorCode::AlreadyExists, fmt::format("{} is there already", path.native()),
        storage.kind(folder / kLatestFile) == EntryKind::Missing
            ? fmt::format(
                  "it is a whole checkpoint that no `latest` names, as after a command that was "
                  "killed before its last step: write {} into {} to use it, or remove it "
                  "and run again; nothing was overwritten",
                  tag, (folder / kLatestFile).native())
            : "choose another folder or tag, or remove it first; nothing was overwritten");
}

namespace {

/// How long to wait for `latest`: other writers hold its lock while they publish.
constexpr std::chrono::seconds kLatestPatience{60};

/// Locks the file and removes what dead writers left beside it.
OutputLock lock_latest(Storage& storage, const Path& file) {
  OutputLock lock = OutputLock::beside(storage, file, kLatestPatience);
  remove_dead_staging(storage, parent_folder(file), file.filename().native());
  return lock;
}

}  // namespace

LatestMove::LatestMove(Storage& storage, const Path& file, std::string_view text)
    : lock_(lock_latest(storage, file)), staged_(storage, file, text) {}

void LatestMove::commit() { staged_.commit(); }

SaveTransaction::SaveTransaction(Storage& storage, Path folder, std::string tag,
                                 std::string save_id, CommitOptions options)
    : storage_(storage),
      folder_(std::move(folder)),
      tag_(std::move(tag)),
      save_id_(std::move(save_id)),
      options_(std::move(options)),
      staging_(staging_folder(folder_, tag_, save_id_)),
      commit_number_(options_.commit_number) {
  validate_tag(tag_);
  require_no_checkpoint_around(storage_, folder_);
  made_folders_ = make_durable_directory(storage_, folder_);
  if (options_.move_latest) require_own_tag(storage_, folder_, readable_latest(storage_, folder_));
  lock_.emplace(OutputLock::beside(storage_, folder_ / tag_));
  require_replaceable(storage_, folder_, tag_, options_.replace);
  if (commit_number_ == 0) commit_number_ = next_commit_number(storage_, folder_);
  if (detail::has_committed_tag(storage_, folder_)) remove_dead_staging(storage_, folder_, tag_);
  report(CommitStep::CreateStaging);
  storage_.create_directory(staging_);
}

SaveTransaction::SaveTransaction(Storage& storage, Path folder, const Manifest& manifest,
                                 CommitOptions options)
    : storage_(storage),
      folder_(std::move(folder)),
      tag_(manifest.tag),
      save_id_(manifest.save_id),
      options_(std::move(options)),
      staging_(staging_folder(folder_, tag_, save_id_)),
      commit_number_(manifest.commit_number),
      not_finite_(describe_not_finite(manifest.catalog)),
      keeps_staging_(true) {
  validate_tag(tag_);
  lock_.emplace(OutputLock::beside(storage_, folder_ / tag_));
}

SaveTransaction::~SaveTransaction() {
  if (published_ || keeps_staging_) return;
  try {
    storage_.remove_tree(staging_);
    lock_.reset();
    remove_if_empty(storage_, made_folders_);
  } catch (const std::exception&) {  // the next save of this tag removes it
  }
}

void SaveTransaction::report(CommitStep step) const {
  if (options_.on_step) options_.on_step(step);
}

void SaveTransaction::warn(const std::string& sentence) const noexcept {
  if (options_.warn) options_.warn(sentence);
}

Manifest SaveTransaction::complete(Catalog catalog, std::vector<ShardEntry> shards) {
  require_staging(storage_, staging_);
  Manifest manifest = {.save_id = save_id_,
                       .tag = tag_,
                       .commit_number = commit_number_,
                       .saved_unix_seconds = std::time(nullptr),
                       .chunk_bytes = options_.chunk_bytes,
                       .catalog = std::move(catalog),
                       .shards = std::move(shards)};
  validate(manifest.catalog, fmt::format("saving {}", tag_));
  combine_digests(storage_, staging_, manifest);
  if (options_.identity) check_identity(manifest, staging_, *options_.identity);
  write_manifest(manifest);
  return manifest;
}

void SaveTransaction::complete_part(const Manifest& manifest) {
  require_staging(storage_, staging_);
  write_manifest(manifest);
}

void SaveTransaction::write_manifest(const Manifest& manifest) {
  not_finite_ = describe_not_finite(manifest.catalog);
  report(CommitStep::SyncStaging);
  storage_.sync_directory(staging_);

  report(CommitStep::WriteManifest);
  const Path hidden = staging_ / kHiddenManifestFile;
  write_synced(storage_, hidden, encode_manifest(manifest));
  report(CommitStep::SyncManifest);
  storage_.rename(hidden, staging_ / kManifestFile);
  storage_.sync_directory(staging_);
}

/// Tries again when another process creates or removes the name between the check and the move.
void SaveTransaction::move_into_place() {
  constexpr int kTries = 10;
  const Path published = folder_ / tag_;
  for (int i = 1;; ++i) {
    require_replaceable(storage_, folder_, tag_, options_.replace);
    try {
      if (storage_.kind(published) == EntryKind::Missing)
        return storage_.rename_new(staging_, published);
      storage_.exchange(staging_, published);
      published_ = true;
      if (is_unishard_checkpoint(storage_, staging_)) return;
      storage_.exchange(staging_, published);  // something else has come in between
      published_ = false;
    } catch (const Error& error) {
      const bool has_moved =
          error.code() == ErrorCode::NotFound || error.code() == ErrorCode::AlreadyExists;
      if (!has_moved || i == kTries) throw;
    }
  }
}

/// Pre: the lock of `latest` is held, so that no other save publishes.
bool SaveTransaction::is_overtaken() const {
  if (next_commit_number(storage_, folder_) <= commit_number_ + 1) return false;
  warn(fmt::format("{} was started before a save that is complete already: `latest` stays",
                   (folder_ / tag_).native()));
  return true;
}

void SaveTransaction::publish() {
  publish_tag();
  retain();
}

void SaveTransaction::publish_tag() {
  report(CommitStep::PublishTag);
  std::optional<LatestMove> latest;
  if (options_.move_latest) latest.emplace(storage_, folder_ / kLatestFile, tag_ + "\n");
  if (latest && is_overtaken()) latest.reset();
  if (lock_) lock_->require_held();
  move_into_place();
  published_ = true;
  report(CommitStep::SyncFolder);
  storage_.sync_directory(folder_);

  report(CommitStep::MoveLatest);
  if (latest) latest->commit();
}

void SaveTransaction::retain() {
  report(CommitStep::Retain);
  remove_older();
}

/// Keeps older checkpoints when the new one holds a diverged run: they are then all that is left of
/// the sound one.
void SaveTransaction::remove_older() noexcept {
  const auto report_kept = [&](const std::string& name, const std::string& reason) {
    warn(fmt::format("{} is kept: {}", (folder_ / name).native(), reason));
  };
  try {
    detail::remove_dead_staging(storage_, folder_, tag_, report_kept);
    if (options_.keep_last > 0 && !not_finite_.empty()) {
      warn(fmt::format("{}: {}: no older checkpoint is removed", (folder_ / tag_).native(),
                       not_finite_));
      return;
    }
    for (const KeptTag& kept : prune(storage_, folder_, options_.keep_last, tag_).kept)
      report_kept(kept.tag, kept.reason);
  } catch (const std::exception& error) {
    warn(fmt::format("older checkpoints in {} are kept: {}", folder_.native(), error.what()));
  }
}

}  // namespace unishard
