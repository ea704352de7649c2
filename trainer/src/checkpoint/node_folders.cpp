#include "checkpoint/node_folders.hpp"

#include "unishard/format/commit.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/node_shards.hpp"
#include "unishard/trainer/agree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

namespace unishard::trainer::detail {
namespace {

/// Complete saves that were not published in `folder`, by save id.
using Staged = std::map<std::string, Manifest>;

Staged find_staged(Storage& storage, const Path& folder) {
  Staged staged;
  if (storage.kind(folder) != EntryKind::Directory) return staged;
  for (const Entry& entry : storage.list(folder)) {
    const Path path = folder / entry.name;
    if (entry.kind != EntryKind::Directory || !is_partial_name(entry.name) ||
        storage.kind(path / kManifestFile) != EntryKind::File) {
      continue;
    }
    try {
      Manifest manifest = read_manifest(storage, path);
      // A checkpoint that was replaced has the name of the save that replaced it.
      if (entry.name == marked_name(manifest.tag, kPartialMark, manifest.save_id) &&
          !nodes_of(manifest.catalog).empty()) {
        staged.emplace(manifest.save_id, std::move(manifest));
      }
    } catch (const Error&) {  // damaged: nobody publishes it
    }
  }
  return staged;
}

/// Returns those of `wanted` that are published in `folder`.
std::set<std::string> find_published(Storage& storage, const Path& folder,
                                     const std::set<std::string>& wanted) {
  std::set<std::string> published;
  if (storage.kind(folder) != EntryKind::Directory) return published;
  for (const TagEntry& entry : list_tags(storage, folder)) {
    if (!entry.problem.empty()) continue;
    const std::string id = read_manifest(storage, folder / entry.tag).save_id;
    if (wanted.contains(id)) published.insert(id);
  }
  return published;
}

/// Returns the save ids of all ranks.
std::set<std::string> gather_ids(Communicator& communicator, const std::set<std::string>& mine) {
  std::string text;
  for (const std::string& id : mine) text += id;
  std::set<std::string> all;
  for (const std::string& ids : gather_text(communicator, text)) {
    for (std::size_t at = 0; at + kSaveIdDigits <= ids.size(); at += kSaveIdDigits)
      all.insert(ids.substr(at, kSaveIdDigits));
  }
  return all;
}

void publish_staged(Storage& storage, const Path& folder, const Manifest& manifest) {
  try {
    SaveTransaction transaction(storage, folder, manifest, {});
    transaction.publish();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Busy) throw;  // else its writer lives, and publishes it
  }
}

}  // namespace

void require_separate_folders(Communicator& communicator, const Nodes& nodes, Storage& storage,
                              const Path& folder) {
  const bool is_leader = nodes.is_leader(communicator.rank());
  std::string mine;
  agree(communicator, "marking the folder of each node", [&] {
    if (!is_leader) return;
    make_durable_directory(storage, folder);
    mine = marked_name("node", kPartialMark, new_save_id());
    storage.create(folder / mine)->close();
  });
  const std::vector<std::string> marks = gather_text(communicator, mine);
  std::string problem;
  agree(communicator, "comparing the folders of the nodes", [&] {
    for (std::uint32_t rank = 0; is_leader && rank < marks.size(); ++rank) {
      if (rank == communicator.rank() || marks[rank].empty()) continue;
      if (storage.kind(folder / marks[rank]) == EntryKind::File)
        problem =
            fmt::format("node {} and node {} see the same folder {}",
                        nodes.names()[communicator.rank()], nodes.names()[rank], folder.native());
    }
  });
  agree(communicator, "removing the marks", [&] {
    if (is_leader) storage.remove_file(folder / mine);
  });
  const std::vector<std::string> problems = gather_text(communicator, problem);
  const auto first = std::ranges::find_if_not(problems, &std::string::empty);
  if (first == problems.end()) return;
  raise(ErrorCode::InvalidArgument, *first + ", and \"use_node_local_storage\" is true",
        "save to a disk of each node, or set checkpoint.use_node_local_storage to false");
}

void finish_publishing(Communicator& communicator, const Nodes& nodes, Storage& storage,
                       const Path& folder) {
  const bool is_leader = nodes.is_leader(communicator.rank());
  Staged staged;
  std::set<std::string> ids;
  agree(communicator, "looking for interrupted saves", [&] {
    if (is_leader) staged = find_staged(storage, folder);
    for (const auto& [id, manifest] : staged) ids.insert(id);
  });
  const std::set<std::string> wanted = gather_ids(communicator, ids);
  if (wanted.empty()) return;
  std::set<std::string> published;
  agree(communicator, "looking for saves that one node has published", [&] {
    if (is_leader) published = find_published(storage, folder, wanted);
  });
  published = gather_ids(communicator, published);
  agree(communicator, "finishing an interrupted save", [&] {
    std::erase_if(staged, [&](const auto& save) { return !published.contains(save.first); });
    std::vector<const Manifest*> in_order;
    for (const auto& [id, manifest] : staged) in_order.push_back(&manifest);
    std::ranges::sort(in_order, {}, &Manifest::commit_number);
    for (const Manifest* manifest : in_order) publish_staged(storage, folder, *manifest);
  });
}

std::vector<FileExcerpt> share_tables(Communicator& communicator, const Nodes& nodes,
                                      Storage& storage, const Path& folder,
                                      const std::function<void(Storage&)>& read) {
  std::string mine;
  agree(communicator, "reading the tables of each node's shards", [&] {
    const bool has_files = storage.kind(folder) == EntryKind::Directory;
    if (!nodes.is_leader(communicator.rank())) return;
    mine = encode_excerpts(has_files ? excerpts_of(storage, folder, read)
                                     : std::vector<FileExcerpt>());
  });
  std::vector<FileExcerpt> others;
  for (const std::uint32_t leader : nodes.leaders()) {
    const std::string text = broadcast_text(communicator, mine, leader);
    if (leader == nodes.leader_of(communicator.rank())) continue;
    std::ranges::move(decode_excerpts(text), std::back_inserter(others));
  }
  return others;
}

}  // namespace unishard::trainer::detail
