#include "formats/dcp/folders.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"

#include "containers/object_tree.hpp"
#include "formats/dcp/copied_files.hpp"
#include "formats/dcp/flat_parameters.hpp"
#include "formats/dcp/key_layout.hpp"
#include "formats/dcp/keys.hpp"
#include "formats/dcp/megatron.hpp"
#include "formats/dcp/nanotron.hpp"
#include "formats/dcp/rank_files.hpp"
#include "formats/dcp/rank_shards.hpp"
#include "formats/dcp/safetensors_pieces.hpp"
#include "formats/dcp/schedule_files.hpp"
#include "formats/dcp/state_files.hpp"
#include "reading/broken_files.hpp"
#include "reading/completeness.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>

namespace unishard::converters::dcp {
namespace {

constexpr std::string_view kMetadataFile = ".metadata", kDataSuffix = ".distcp";
constexpr std::string_view kModelFolder = "pytorch_model_fsdp_", kOptimizerFolder = "optimizer_";

/// Returns the rank of `__<rank>.metadata`.
std::optional<std::uint64_t> metadata_rank(std::string_view name) {
  constexpr std::string_view kStart = "__", kEnd = ".metadata";
  if (!name.starts_with(kStart) || !name.ends_with(kEnd) ||
      name.size() <= kStart.size() + kEnd.size())
    return std::nullopt;
  const std::string_view rank =
      name.substr(kStart.size(), name.size() - kStart.size() - kEnd.size());
  if (!is_number(rank)) return std::nullopt;
  return std::stoull(std::string(rank));
}

std::vector<Path> files_ending(Storage& storage, const Path& folder, std::string_view end) {
  std::vector<Path> found;
  for (const Entry& entry : storage.list(folder)) {
    if (entry.kind == EntryKind::File && entry.name.ends_with(end))
      found.push_back(folder / entry.name);
  }
  return found;
}

/// Returns true when the first safetensors file of the folder records which part of a tensor it
/// holds, or cannot be read and has the name of such a file.
bool has_sharded_safetensors(Storage& storage, const Path& folder) {
  const std::vector<Path> files = files_ending(storage, folder, ".safetensors");
  if (files.empty() || !files[0].filename().string().starts_with("shard-")) return false;
  try {
    const std::shared_ptr<const File> file = storage.open(files[0]);
    if (looks_like_safetensors(*file)) return read_pieces(file).says_where;
  } catch (const Error&) {  // the reader reports the failure
  }
  return parse_shard_name(files[0].filename().native()).has_value();
}

/// Returns the first folder of the model or optimizer that accelerate numbered, finished or not.
std::optional<Path> first_folder(Storage& storage, const Path& path, std::string_view start) {
  std::map<std::uint64_t, Path> folders;
  for (const Entry& entry : storage.list(path)) {
    if (entry.kind != EntryKind::Directory || !entry.name.starts_with(start)) continue;
    const std::string number = entry.name.substr(start.size());
    if (is_number(number)) folders.emplace(std::stoull(number), path / entry.name);
  }
  return folders.empty() ? std::nullopt : std::optional(folders.begin()->second);
}

/// Throws: Corrupt when it is not number 0: paired with what is there, it would be another's.
std::optional<Path> numbered_folder(Storage& storage, const Path& path, std::string_view start) {
  auto first = first_folder(storage, path, start);
  if (!first || std::stoull(first->filename().string().substr(start.size())) == 0) return first;
  raise(ErrorCode::Corrupt,
        fmt::format("{}: {}0 is missing, and {} is there", path.string(), start,
                    first->filename().string()),
        "bring the folder back, or name the other folder itself");
}

[[noreturn]] void refuse_unfinished(Storage& storage, const Path& folder) {
  const bool has_data = !files_ending(storage, folder, kDataSuffix).empty();
  raise(ErrorCode::Corrupt,
        fmt::format("{} has {}no .metadata: the save did not finish", folder.string(),
                    has_data ? "data files and " : ""),
        "use an earlier checkpoint; nothing says what the data files hold");
}

/// Names what lies in the folder and is no part of the checkpoint, such as the meta.pt of
/// Lightning.
void name_other_files(Storage& storage, const Path& folder, const Metadata& metadata,
                      bool is_megatron, Losses& losses) {
  std::set<std::string> known = {std::string(kMetadataFile)};
  for (const std::string& file : metadata.files) known.insert(Path(file).begin()->string());
  if (is_megatron) known.insert({"common.pt", "metadata.json"});
  for (const Entry& entry : list_content(storage, folder)) {
    if (known.contains(entry.name)) continue;
    const bool is_stale = entry.name.ends_with(kDataSuffix);
    // A rank that had nothing to write leaves one.
    if (is_stale && entry.kind == EntryKind::File && storage.open(folder / entry.name)->size() == 0)
      continue;
    losses.push_back({is_stale ? Role::StaleFile : role_of_unread_file(entry.name), entry.name,
                      is_stale ? "the metadata does not name it" : ""});
  }
}

/// Returns whether it is an iteration of Megatron-Core.
bool read_folder(Storage& storage, const Path& folder, StateDictBuilder& builder) {
  if (storage.kind(folder / kMetadataFile) == EntryKind::Missing)
    refuse_unfinished(storage, folder);
  const Metadata metadata = read_metadata(storage, folder / kMetadataFile);
  builder.add_folder(folder, metadata);
  Json producer = {{"library", "torch.distributed.checkpoint"}};
  if (!metadata.version.empty()) producer["version"] = metadata.version;
  builder.out.producer = std::move(producer);
  const bool is_megatron = is_megatron_iteration(storage, folder) || has_megatron_keys(builder.out);
  if (is_megatron) add_megatron(storage, folder, builder);
  name_other_files(storage, folder, metadata, is_megatron, builder.out.losses);
  return is_megatron;
}

/// Reads one folder whose keys a sink can write again.
void read_one_folder(Storage& storage, const Path& folder, StateDictBuilder& builder) {
  // The keys of these are no longer those of the files.
  const bool is_changed = read_folder(storage, folder, builder) || builder.like != nullptr ||
                          std::ranges::any_of(builder.out.tensors, is_flat_parameter);
  if (is_changed) return;
  builder.out.layout = describe_folder;
  builder.out.complete = record_folder;
}

void read_rank_local(Storage& storage, const Path& folder, StateDictBuilder& builder) {
  std::map<std::uint64_t, Path> ranks;
  for (const Path& file : files_ending(storage, folder, kMetadataFile)) {
    if (const auto rank = metadata_rank(file.filename().string())) ranks.emplace(*rank, file);
  }
  builder.ranks_repeat = true;
  for (const auto& [rank, file] : ranks)
    builder.add_folder(folder, read_metadata(storage, file), rank);
  builder.out.world_size =
      std::max<std::uint32_t>(builder.out.world_size, static_cast<std::uint32_t>(ranks.size()));
  builder.out.producer = {{"library", "torch.distributed.checkpoint"}};
}

/// Returns the name of the schedule's file: that of accelerate, or that of the Trainer.
std::optional<std::string> schedule_file(Storage& storage, const Path& path) {
  for (const char* name : {"scheduler.bin", "scheduler.pt"}) {
    if (storage.kind(path / name) == EntryKind::File) return name;
  }
  return std::nullopt;
}

void remark_on_states(std::string remark, StateDictBuilder& builder) {
  builder.out.complete = [remark = std::move(remark)](const StateDict&, Arrangement& arranged) {
    arranged.remark_on_states(remark);
  };
}

/// Says that the schedule of a Trainer is missing.
void doubt_schedule(Storage& storage, const Path& path, const Path& optimizer,
                    StateDictBuilder& builder) {
  if (storage.kind(path / "trainer_state.json") != EntryKind::File || schedule_file(storage, path))
    return;
  remark_on_states(missing_schedule("scheduler.pt", optimizer.filename().string()), builder);
}

/// Whether a schedule has set the learning rates of an optimizer in a folder of its own.
bool is_scheduled_folder(Storage& storage, const Path& folder) {
  try {
    StateDictBuilder builder(storage);
    builder.add_folder(folder, read_metadata(storage, folder / kMetadataFile));
    return std::ranges::any_of(builder.out.objects, has_schedule);
  } catch (const Error&) {
    return false;  // it is named as what is not read
  }
}

/// Says which schedules of several are missing.
void name_missing_schedules(Storage& storage, const Path& path, StateDictBuilder& builder) {
  std::vector<std::string> scheduled;
  if (std::ranges::any_of(builder.out.objects, has_schedule))
    scheduled.emplace_back("the first optimizer");
  if (!has_schedule_files(storage, path)) {
    const bool is_doubted =
        !scheduled.empty() && !schedule_file(storage, path) && !builder.out.complete;
    if (is_doubted) remark_on_states(doubt_about_schedule(scheduled), builder);
    return;
  }
  for (const Entry& entry : storage.list(path)) {
    const std::string number = entry.name.starts_with(kOptimizerFolder)
                                   ? entry.name.substr(kOptimizerFolder.size())
                                   : std::string();
    if (is_number(number) && number != "0" && is_scheduled_folder(storage, path / entry.name))
      scheduled.push_back(entry.name);
  }
  for (Loss& loss : missing_schedules(storage, path, scheduled))
    builder.out.losses.push_back(std::move(loss));
}

/// Reads what accelerate and the Trainer save beside model and optimizer: the schedule's file, and
/// files of each process.
void read_beside(Storage& storage, const Path& path, const std::vector<Path>& read,
                 StateDictBuilder& builder) {
  const std::optional<std::string> schedule = schedule_file(storage, path);
  for (const Entry& entry : list_content(storage, path)) {
    const Path at = path / entry.name;
    if (std::ranges::count(read, at) > 0) continue;
    if (entry.name == schedule) {
      read_schedule_file(storage, builder, at);
    } else {
      const bool is_model = entry.name.starts_with(kModelFolder);
      builder.out.losses.push_back(
          {is_model ? Role::OtherModel : role_of_unread_file(entry.name), entry.name});
    }
  }
  name_missing_schedules(storage, path, builder);
  add_likely_steps(storage, path, builder);
}

void read_accelerate(Storage& storage, const Path& path, StateDictBuilder& builder,
                     bool has_optimizer) {
  std::vector<Path> read;
  for (const std::string_view start : {kModelFolder, kOptimizerFolder}) {
    if (start == kOptimizerFolder && !has_optimizer) {
      if (auto lost = first_folder(storage, path, start)) read.push_back(*std::move(lost));
      continue;
    }
    const auto folder = numbered_folder(storage, path, start);
    if (!folder && start == kOptimizerFolder && schedule_file(storage, path))
      builder.out.losses.push_back({.role = Role::SideFile,
                                    .name = fmt::format("{}0", kOptimizerFolder),
                                    .why = "no folder of it is beside the schedule's file",
                                    .is_broken = true});
    if (!folder) continue;
    const std::size_t before = builder.out.tensors.size();
    read_folder(storage, *folder, builder);
    read.push_back(*folder);
    if (start == kModelFolder && builder.out.tensors.size() == before)
      builder.out.losses.push_back(
          {.role = Role::Weight,
           .name = folder->filename().string(),
           .why = "no tensor is in the folder, and the weights of the run are in no file here: so "
                  "accelerate saves a model of PEFT that FSDP1 has wrapped (FSDP2 saves the "
                  "adapter)",
           .is_absent = true});
    if (start == kOptimizerFolder) doubt_schedule(storage, path, *folder, builder);
  }
  builder.out.producer["library"] = "accelerate";
  read_beside(storage, path, read, builder);
}

/// Returns the safetensors files that the ranks have written.
/// Throws: Corrupt when something that is no file has the name of one.
std::vector<Path> rank_shards(Storage& storage, const Path& folder) {
  for (const Entry& entry : storage.list(folder)) {
    if (parse_shard_name(entry.name) && storage.kind(folder / entry.name) != EntryKind::File)
      raise(ErrorCode::Corrupt,
            fmt::format("{} is not a file that can be read", (folder / entry.name).string()));
  }
  return files_ending(storage, folder, ".safetensors");
}

void read_all_rank_files(Storage& storage, const Path& path, StateDictBuilder& builder,
                         bool has_optimizer) {
  std::vector<Path> read = read_rank_files(storage, path, builder);
  // accelerate's LOCAL_STATE_DICT stores the model in files of the ranks, the optimizer in a
  // folder.
  const auto optimizer = has_optimizer ? numbered_folder(storage, path, kOptimizerFolder)
                                       : first_folder(storage, path, kOptimizerFolder);
  if (optimizer) {
    if (has_optimizer) read_folder(storage, *optimizer, builder);
    read.push_back(*optimizer);
  }
  read_beside(storage, path, read, builder);
}

/// Reads the whole model from one torch.save file, and its optimizer, if any, from another.
std::optional<Path> whole_model_file(Storage& storage, const Path& path) {
  const bool has_optimizer = storage.kind(path / "optimizer.bin") == EntryKind::File;
  if (storage.kind(path / "pytorch_model_fsdp.bin") == EntryKind::File)
    return path / "pytorch_model_fsdp.bin";
  if (has_optimizer && storage.kind(path / "pytorch_model.bin") == EntryKind::File)
    return path / "pytorch_model.bin";
  return std::nullopt;
}

void add_whole_model(Storage& storage, const Path& model, StateDictBuilder& builder) {
  const std::shared_ptr<const File> file = builder.open(model);
  const torch::TorchFile object({file, 0, file->size()});
  if (const std::string other = other_name(storage, model, object); !other.empty()) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: it was written as {}, which is here too", model.string(), other),
          "bring the model's own file back");
  }
  builder.add_object("model", {{"model", false}}, object);
}

/// A model needs no optimizer: one that cannot be read is lost.
void add_whole_optimizer(Storage& storage, const Path& path, StateDictBuilder& builder) {
  const auto object = open_state(storage, builder, path, Role::Optimizer);
  if (object && is_in_place(storage, builder, path, *object, Role::Optimizer))
    builder.add_object("optimizer", {{"optimizer", false}}, *object);
}

void read_whole_files(Storage& storage, const Path& path, StateDictBuilder& builder) {
  const Path model = whole_model_file(storage, path).value_or(path),
             optimizer = path / "optimizer.bin";
  add_whole_model(storage, model, builder);
  if (storage.kind(optimizer) == EntryKind::File) {
    add_whole_optimizer(storage, optimizer, builder);
    doubt_schedule(storage, path, optimizer, builder);
  } else if (schedule_file(storage, path)) {
    builder.out.losses.push_back({Role::SideFile, optimizer.filename().string(),
                                  "it is not there, and the schedule's file is"});
  }
  builder.out.producer = {{"library", "accelerate"}};
  read_beside(storage, path, {model, optimizer}, builder);
}

/// The files beside sharded/ hold the whole tensors that were put together from it.
/// Throws: Corrupt when the parts make less than one of them.
void require_whole_tensors(Storage& storage, const Path& path, const Path& folder,
                           const std::map<std::string, Shape>& shapes) {
  for (const Path& file : files_ending(storage, path, ".safetensors")) {
    const std::shared_ptr<const File> opened = storage.open(file);
    if (!looks_like_safetensors(*opened)) continue;
    for (const SafetensorsPiece& whole : read_pieces(opened).pieces) {
      const auto found = shapes.find(whole.key);
      if (found != shapes.end() && found->second == whole.box.sizes) continue;
      raise(ErrorCode::Corrupt,
            fmt::format(
                "{}: the parts of {} make ({}), and {} has ({}): files of a rank are missing",
                folder.string(), unishard::quote(whole.key),
                found == shapes.end() ? "" : fmt::format("{}", fmt::join(found->second, ", ")),
                file.filename().string(), fmt::join(whole.box.sizes, ", ")),
            "bring the files back, or move the folder sharded away: the files beside it are whole");
    }
  }
}

/// Ranks save each part once; only whole tensors may have copies.
/// Throws: Corrupt, naming the file, when two files hold the same part.
void require_own_parts(const std::vector<SafetensorsPiece>& pieces, const Shape& shape) {
  std::map<std::pair<Shape, Shape>, const SafetensorsPiece*> parts;
  for (const SafetensorsPiece& piece : pieces) {
    if (piece.box.sizes == shape || piece.box.elements() == 0) continue;
    const auto [first, is_new] = parts.try_emplace({piece.box.offsets, piece.box.sizes}, &piece);
    if (is_new) continue;
    raise(ErrorCode::Corrupt,
          fmt::format("{} and {} hold the same part of {}: one is a copy in another's place",
                      first->second->view.storage->window.name(), piece.view.storage->window.name(),
                      unishard::quote(piece.key)),
          "bring the file of the other rank back, or use another checkpoint");
  }
}

/// Refuses the file of a rank that has every part of another rank's, which would make whole tensors
/// of one rank's parts.
class RankContents {
 public:
  /// Throws: Corrupt, naming both files.
  void add(const Path& file, const std::vector<SafetensorsPiece>& pieces) {
    Content content;
    for (const SafetensorsPiece& piece : pieces)
      content.emplace(piece.key, std::pair(piece.box.offsets, piece.box.sizes));
    if (content.empty()) return;
    const auto [first, is_new] = files_.emplace(std::move(content), file);
    if (is_new) return;
    raise(ErrorCode::Corrupt,
          fmt::format("{} and {} hold the same parts of the same tensors: one is a copy in "
                      "another's place",
                      first->second.string(), file.filename().string()),
          "bring the file of the other rank back, or use another checkpoint");
  }

 private:
  using Content = std::map<std::string, std::pair<Shape, Shape>>;
  std::map<Content, Path> files_;
};

void read_sharded_safetensors(Storage& storage, const Path& path, StateDictBuilder& builder) {
  const Path folder = has_sharded_safetensors(storage, path) ? path : path / "sharded";
  std::map<std::string, std::vector<SafetensorsPiece>> tensors;
  std::vector<std::string> order;
  RankShards ranks;
  RankContents contents;
  for (const Path& file : rank_shards(storage, folder)) {
    std::vector<std::string> keys;
    SafetensorsPieces read = read_pieces(builder.open(file));
    contents.add(file, read.pieces);
    for (SafetensorsPiece& piece : read.pieces) {
      keys.push_back(piece.key);
      if (!tensors.contains(piece.key)) order.push_back(piece.key);
      tensors[piece.key].push_back(std::move(piece));
    }
    if (const auto name = parse_shard_name(file.filename().native())) ranks.add(*name, keys);
  }
  builder.out.world_size = std::max(builder.out.world_size, ranks.ranks());
  for (std::string& note : ranks.require_whole(folder))
    builder.out.notes.push_back(std::move(note));
  builder.ranks_repeat = true;
  std::map<std::string, Shape> shapes;
  for (const std::string& key : order) {
    std::vector<SafetensorsPiece>& pieces = tensors[key];
    Shape shape(pieces[0].box.sizes.size(), 0);  // the files do not record the size of the whole
    for (const SafetensorsPiece& piece : pieces) {
      for (std::size_t d = 0; d < std::min(shape.size(), piece.box.sizes.size()); ++d) {
        shape[d] = std::max(shape[d], checked_add(piece.box.offsets[d], piece.box.sizes[d], key));
      }
    }
    require_own_parts(pieces, shape);
    for (SafetensorsPiece& piece : pieces)
      builder.add_piece(key, {{key, false}}, shape, std::move(piece.box), std::move(piece.view));
    shapes.emplace(key, std::move(shape));
  }
  if (folder != path && !files_ending(storage, path, ".safetensors").empty()) {
    require_whole_tensors(storage, path, folder, shapes);
    builder.out.notes.push_back(
        "read from sharded/; whether the files beside it hold the same values was not checked");
  } else if (ranks.ranks() > 0) {
    builder.out.notes.push_back(
        fmt::format("nothing in the files tells how many ranks saved: the files of {} were read",
                    ranks.ranks()));
  }
  builder.out.producer = {{"library", "torch.distributed.checkpoint"}};
}

/// Whether the tensors lie in files of archives (.distcp).
bool has_data_files(Layout layout) {
  return layout == Layout::Folder || layout == Layout::Megatron || layout == Layout::RankLocal ||
         layout == Layout::Accelerate;
}

}  // namespace

Layout find_layout(Storage& storage, const Path& path) {
  if (storage.kind(path) != EntryKind::Directory) return Layout::None;
  if (storage.kind(path / kMetadataFile) == EntryKind::File) return Layout::Folder;
  if (const auto latest = latest_iteration(storage, path);
      latest && storage.kind(*latest / kMetadataFile) == EntryKind::File)
    return Layout::Megatron;
  if (find_nanotron(storage, path)) return Layout::Nanotron;
  bool has_data = false;
  for (const Entry& entry : storage.list(path)) {
    if (entry.kind == EntryKind::File && metadata_rank(entry.name)) return Layout::RankLocal;
    has_data |= entry.name.ends_with(kDataSuffix);
  }
  if (has_data) return Layout::Unfinished;
  if (numbered_folder(storage, path, kModelFolder)) return Layout::Accelerate;
  if (whole_model_file(storage, path)) return Layout::WholeFiles;
  if (has_rank_files(storage, path)) return Layout::RankFiles;
  if (has_sharded_safetensors(storage, path)) return Layout::Safetensors;
  if (storage.kind(path / "sharded") == EntryKind::Directory &&
      has_sharded_safetensors(storage, path / "sharded"))
    return Layout::Safetensors;
  return Layout::None;
}

bool holds_checkpoint(Storage& storage, const Path& path) {
  if (storage.kind(path) != EntryKind::Directory) return false;
  const Layout layout = find_layout(storage, path);
  return layout == Layout::Folder || layout == Layout::RankLocal;
}

namespace {

/// Reads all but the folder of the optimizer where `has_optimizer` is false.
StateDict read_layout(Storage& storage, const Path& path, const OpenOptions& options,
                      const LikeModel* like, Layout layout, bool has_optimizer) {
  StateDictBuilder builder(storage);
  builder.from_rank = options.from_rank;
  builder.out.assumes_model_order = options.assume_model_order;
  builder.like = like;
  switch (layout) {
    case Layout::Folder:
      read_one_folder(storage, path, builder);
      break;
    case Layout::Megatron:
      read_folder(storage, latest_iteration(storage, path).value_or(path), builder);
      break;
    case Layout::RankLocal:
      read_rank_local(storage, path, builder);
      break;
    case Layout::Accelerate:
      read_accelerate(storage, path, builder, has_optimizer);
      break;
    case Layout::WholeFiles:
      read_whole_files(storage, path, builder);
      break;
    case Layout::RankFiles:
      read_all_rank_files(storage, path, builder, has_optimizer);
      break;
    case Layout::Nanotron:
      read_nanotron(storage, find_nanotron(storage, path).value_or(path), builder);
      break;
    case Layout::Safetensors:
      read_sharded_safetensors(storage, path, builder);
      break;
    case Layout::Unfinished:
      refuse_unfinished(storage, path);
    case Layout::None:
      raise(ErrorCode::NotFound,
            fmt::format("{} is not a PyTorch distributed checkpoint", path.string()));
  }
  if (options.from_rank && !builder.ranks_repeat) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{} has no copies of ranks of which one could be chosen", path.string()),
          "leave --from-rank out");
  }
  StateDict state = builder.finish(path.string());
  if (has_data_files(layout))
    std::ranges::move(doubts_about_copied_files(state), std::back_inserter(state.remarks));
  return state;
}

}  // namespace

StateDict read_state_dict(Storage& storage, const Path& path, const OpenOptions& options,
                          const LikeModel* like) {
  const Layout layout = find_layout(storage, path);
  Losses losses;
  std::optional<StateDict> state;
  const auto read = [&](bool has_optimizer) {
    state = read_layout(storage, path, options, like, layout, has_optimizer);
  };
  // A model needs no optimizer, which accelerate saves in a folder of its own.
  const bool may_lack = layout == Layout::Accelerate || layout == Layout::RankFiles;
  const std::optional<Path> optimizer =
      may_lack ? first_folder(storage, path, kOptimizerFolder) : std::nullopt;
  if (!optimizer) {
    read(true);
  } else if (!read_or_lose(losses, Role::Optimizer, optimizer->filename().string(),
                           [&] { read(true); })) {
    read(false);
    std::ranges::move(losses, std::back_inserter(state->losses));
  }
  return *std::move(state);
}

}  // namespace unishard::converters::dcp
