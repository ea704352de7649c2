#include "checkpoint/node_load.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/file_excerpt.hpp"
#include "unishard/format/node_shards.hpp"
#include "unishard/format/text.hpp"
#include "unishard/trainer/agree.hpp"

#include "checkpoint/node_folders.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <map>
#include <set>

namespace unishard::trainer::detail {
namespace {

/// What a node has where the caller looks.
struct Candidate {
  std::string tag = {};  ///< empty: no checkpoint, because of `problem`
  std::uint64_t commit_number = 0;
  bool is_folder = false;  ///< the folder is the tag's own
  std::string problem = {};
};

Json to_json(const Candidate& candidate) {
  return {candidate.tag, candidate.commit_number, candidate.is_folder,
          printable(candidate.problem)};
}

Candidate look_in(Storage& storage, const Path& folder, const std::optional<std::string>& tag) {
  try {
    const Path plain = folder.has_filename() ? folder : folder.parent_path();
    const Path found = resolve_checkpoint(storage, plain, tag);
    return {.tag = found.filename().string(),
            .commit_number = read_manifest(storage, found).commit_number,
            .is_folder = found == plain};
  } catch (const Error& error) {
    return {.problem = error.what()};
  }
}

struct Choice {
  std::uint32_t rank = 0;  ///< that found it first
  Candidate candidate;
};

/// Returns the newest of the nodes' candidates.
/// Throws: NotFound when no node has any.
Choice choose(Communicator& communicator, const Nodes& nodes, Storage& storage, const Path& folder,
              const std::optional<std::string>& tag) {
  std::string mine;
  agree(communicator, "looking for a checkpoint on each node", [&] {
    if (nodes.is_leader(communicator.rank())) mine = to_json(look_in(storage, folder, tag)).dump();
  });
  Choice choice;
  std::string problem;
  const std::vector<std::string> texts = gather_text(communicator, mine);
  for (std::uint32_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    const Json json = Json::parse(texts[rank]);
    const Candidate each{json[0].get<std::string>(), json[1].get<std::uint64_t>(),
                         json[2].get<bool>(), json[3].get<std::string>()};
    if (problem.empty()) problem = each.problem;
    const bool is_newer =
        choice.candidate.tag.empty() || each.commit_number > choice.candidate.commit_number;
    if (!each.tag.empty() && is_newer) choice = {rank, each};
  }
  if (choice.candidate.tag.empty())
    raise(ErrorCode::NotFound, fmt::format("no node has a checkpoint: {}", problem));
  return choice;
}

/// Returns which shards of the save are in `where`; none when it has another save of that tag.
std::vector<bool> shards_of_save(Storage& storage, const Path& where, const Manifest& manifest) {
  if (storage.kind(where / kManifestFile) == EntryKind::File) {
    try {
      if (read_manifest(storage, where).save_id != manifest.save_id)
        return std::vector<bool>(manifest.shards.size());
    } catch (const Error&) {  // damaged: the manifest of another node counts
    }
  }
  return shards_here(storage, where, manifest);
}

/// Throws: NotFound when a shard is on no node.
void require_all_shards(Communicator& communicator, const Nodes& nodes, const Path& where,
                        const Manifest& manifest, const std::vector<std::string>& marks) {
  std::vector<bool> anywhere(manifest.shards.size());
  for (const std::string& node : marks) {
    for (std::size_t shard = 0; shard < node.size(); ++shard)
      if (node[shard] == '1') anywhere[shard] = true;
  }
  if (std::ranges::find(anywhere, false) == anywhere.end()) return;
  const std::vector<std::string> folders = gather_text(communicator, where.string());
  std::string places;
  for (const std::uint32_t leader : nodes.leaders()) {
    places += fmt::format("{}node {} has {} of its {} shards in {}", places.empty() ? "" : ", ",
                          nodes.names()[leader], std::ranges::count(marks[leader], '1'),
                          manifest.shards.size(), printable(folders[leader]));
  }
  raise(ErrorCode::NotFound,
        fmt::format("{}: no node has {}; {}", manifest.tag, list_missing_shards(manifest, anywhere),
                    places),
        "start the job on the nodes that saved it, or copy the files to a node of this job, or "
        "name an older checkpoint that is whole");
}

/// Completes `storage` by what is not on this node.
void add_elsewhere(OverlaidStorage& storage, const NodeCheckpoint& found, const Manifest& manifest,
                   std::vector<FileExcerpt> tables) {
  std::set<std::string> here;
  for (const ShardEntry& entry : manifest.shards) {
    if (!found.here[entry.rank]) continue;
    here.insert(entry.file);
    for (const BaseFile& base : entry.bases) here.insert(base.file);
  }
  for (FileExcerpt& each : tables)
    if (!here.contains(each.name)) add_excerpt(storage, found.where, std::move(each));
}

/// A source of one range, which was received from another rank.
class ReceivedRange final : public converters::Source {
 public:
  ReceivedRange(const Catalog& catalog, std::uint64_t begin, std::span<const std::byte> bytes)
      : catalog_(catalog), begin_(begin), bytes_(bytes) {}
  std::string format() const override { return "native"; }
  const Catalog& catalog() const override { return catalog_; }

 private:
  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    const std::size_t width = size_of(catalog_.tensors[tensor].dtype);
    std::memcpy(out.data(), bytes_.data() + (range.begin - begin_) * width, out.size());
  }
  const Catalog& catalog_;
  const std::uint64_t begin_;
  const std::span<const std::byte> bytes_;
};

using RangeKey = std::array<std::uint64_t, 3>;  // tensor, begin and end

RangeKey key_of(const WantedPart& part) {
  return {part.place->tensor, part.to.held.begin, part.to.held.end};
}

/// Returns what any rank wants.
std::set<RangeKey> gather_keys(Communicator& communicator, const std::vector<WantedPart>& parts) {
  std::string mine;
  for (const WantedPart& part : parts) {
    const RangeKey key = key_of(part);
    mine.append(reinterpret_cast<const char*>(key.data()), sizeof key);
  }
  std::set<RangeKey> keys;
  for (const std::string& text : gather_text(communicator, mine)) {
    for (std::size_t at = 0; at + sizeof(RangeKey) <= text.size(); at += sizeof(RangeKey)) {
      RangeKey key;
      std::memcpy(key.data(), text.data() + at, sizeof key);
      keys.insert(key);
    }
  }
  return keys;
}

}  // namespace

NodeCheckpoint open_on_nodes(Communicator& communicator, const Nodes& nodes, Storage& storage,
                             const Path& folder, const std::optional<std::string>& tag) {
  const Choice choice = choose(communicator, nodes, storage, folder, tag);
  NodeCheckpoint found;
  found.storage = std::make_unique<OverlaidStorage>(storage);
  found.where = choice.candidate.is_folder ? folder : folder / choice.candidate.tag;
  std::string text;
  agree(communicator, "reading the manifest", [&] {
    if (communicator.rank() == choice.rank)
      text = encode_manifest(read_manifest(storage, found.where));
  });
  text = broadcast_text(communicator, text, choice.rank);
  const Manifest manifest = decode_manifest(text, found.where.native());
  std::string mine;
  agree(communicator, "looking for the shards of each node", [&] {
    found.here = shards_of_save(storage, found.where, manifest);
    if (!nodes.is_leader(communicator.rank())) return;
    for (const bool is_here : found.here) mine += is_here ? '1' : '0';
  });
  const std::vector<std::string> marks = gather_text(communicator, mine);
  require_all_shards(communicator, nodes, found.where, manifest, marks);
  for (std::size_t shard = 0; shard < manifest.shards.size(); ++shard) {
    const auto has = [&](const std::string& node) { return !node.empty() && node[shard] == '1'; };
    const auto first = std::ranges::find_if(marks, has);
    found.readers.push_back(static_cast<std::uint32_t>(first - marks.begin()));
  }
  add_excerpt(*found.storage, found.where,
              {std::string(kManifestFile), text.size(), {{0, {text.begin(), text.end()}}}});
  const auto read_tables = [&](Storage& noting) {
    for (const ShardEntry& entry : manifest.shards) {
      if (found.readers[entry.rank] != communicator.rank()) continue;
      ShardReader(noting, found.where / entry.file, entry, manifest.save_id, manifest.catalog,
                  manifest.chunk_bytes);
    }
  };
  add_elsewhere(*found.storage, found, manifest,
                share_tables(communicator, nodes, storage, found.where, read_tables));
  agree(communicator, "opening the checkpoint", [&] {
    found.reader = std::make_shared<const CheckpointReader>(*found.storage, found.where);
  });
  return found;
}

std::vector<WantedPart> take_parts_elsewhere(const NodeCheckpoint& checkpoint,
                                             std::vector<WantedPart>& parts) {
  std::vector<WantedPart> here, elsewhere;
  for (const WantedPart& part : parts) {
    const ElementRange held = part.to.held;
    for (const auto& fragment : checkpoint.reader->fragments(part.place->tensor, held)) {
      const ElementRange range{std::max(fragment.range.begin, held.begin),
                               std::min(fragment.range.end, held.end)};
      if (range.begin >= range.end) continue;
      if (!checkpoint.reader->box_of(fragment).empty())
        raise(ErrorCode::Unsupported, "a checkpoint with boxes is on the disks of several nodes",
              "gather it first: `unishard gather NODE_DIR... OUT`");
      const WantedPart cut{part.place, part.dtype, part.to.part(range)};
      (checkpoint.here[fragment.shard] ? here : elsewhere).push_back(cut);
    }
  }
  parts = std::move(here);
  return elsewhere;
}

void read_elsewhere(Communicator& communicator, const NodeCheckpoint& checkpoint,
                    const converters::Source& source, const std::vector<WantedPart>& parts) {
  const Catalog& catalog = source.catalog();
  std::multimap<RangeKey, const WantedPart*> mine;
  for (const WantedPart& part : parts) mine.emplace(key_of(part), &part);
  std::vector<std::byte> bytes;
  PinnedBuffers buffers(device_of(parts), 1);
  std::exception_ptr failure;
  for (const RangeKey& key : gather_keys(communicator, parts)) {
    const auto& [tensor, begin, end] = key;
    const auto fragments = checkpoint.reader->fragments(tensor, {begin, end});
    const std::uint32_t root = checkpoint.readers[fragments.front().shard];
    bytes.assign((end - begin) * size_of(catalog.tensors[tensor].dtype), std::byte{0});
    try {
      if (communicator.rank() == root) source.read(tensor, {begin, end}, bytes);
    } catch (...) {  // the others wait for the bytes
      failure = std::current_exception();
    }
    communicator.broadcast(bytes, root)->wait();
    const ReceivedRange received(catalog, begin, bytes);
    const auto [first, last] = mine.equal_range(key);
    for (auto part = first; part != last; ++part)
      read_tensor(received, *part->second->place, part->second->dtype, part->second->to, buffers);
  }
  agree(communicator, "reading from the disks of other nodes", [&] {
    if (failure) std::rethrow_exception(failure);
  });
}

}  // namespace unishard::trainer::detail
