// The list of formats. A path is tried in this order. Recognition must be cheap and must not throw
// for a path of another format.
#include "unishard/converters/registry.hpp"

#include "unishard/converters/damaged_files.hpp"
#include "unishard/converters/like_source.hpp"
#include "unishard/format/checkpoint_folder.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/manifest.hpp"
#include "unishard/format/staging_names.hpp"

#include "core/embedded_catalog.hpp"
#include "core/watched_storage.hpp"
#include "core/wrapped_names.hpp"
#include "formats/cut_parts.hpp"
#include "formats/dcp/folders.hpp"
#include "formats/dcp/like_model.hpp"
#include "formats/dcp/reader.hpp"
#include "formats/dcp/verl.hpp"
#include "formats/deepspeed/layout.hpp"
#include "formats/deepspeed/reader.hpp"
#include "formats/deepspeed/writer_parallel.hpp"
#include "formats/files_beside.hpp"
#include "formats/format_detection.hpp"
#include "formats/gguf/reader.hpp"
#include "formats/hdf5/reader.hpp"
#include "formats/native/reader.hpp"
#include "formats/numpy/reader.hpp"
#include "formats/safetensors/model_folder.hpp"
#include "formats/safetensors/reader.hpp"
#include "formats/torch/reader.hpp"
#include "formats/trainer/folder.hpp"
#include "formats/trainer/reader.hpp"
#include "formats/trainer/trainer_state.hpp"
#include "reading/broken_files.hpp"
#include "reading/completeness.hpp"
#include "reading/empty_weights.hpp"
#include "reading/folder_names.hpp"
#include "reading/model_doubts.hpp"
#include "reading/quantizers.hpp"
#include "reading/state_doubts.hpp"
#include "reading/zeroed_tail.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace unishard::converters {
namespace {

using Opener = std::unique_ptr<Source> (*)(Storage&, const Path&, const OpenOptions&);
using Maker = std::unique_ptr<Sink> (*)(Storage&, const Output&, Catalog);

struct Row {
  FormatEntry entry;
  bool (*recognises)(Storage&, const Path&);
  Opener open;
  Maker make;
  /// Recognises one checkpoint, not a folder of them. Null: recognises() decides.
  bool (*is_one)(Storage&, const Path&) = nullptr;
  std::string_view tagless = {};  ///< "an HDF5 file": what a checkpoint without tags is called
};

bool is_native(Storage& storage, const Path& path) {
  if (storage.kind(path) != EntryKind::Directory) return false;
  if (storage.kind(path / kManifestFile) == EntryKind::File) return true;
  // A writer may remove the tags of one list before they are examined; a new list then has others.
  constexpr int kTries = 3;
  for (int i = 0; i < kTries; ++i) {
    for (const Entry& entry : storage.list(path)) {
      if (entry.kind == EntryKind::Directory && !is_leftover(entry.name) &&
          storage.kind(path / entry.name / kManifestFile) == EntryKind::File)
        return true;
    }
    if (storage.kind(path / kLatestFile) == EntryKind::Missing) break;
  }
  return false;
}

/// Also true without a manifest, for the shards of an incomplete checkpoint.
bool is_native_tag(Storage& storage, const Path& path) {
  if (storage.kind(path) != EntryKind::Directory) return false;
  if (storage.kind(path / kManifestFile) != EntryKind::Missing) return true;
  const std::vector<Entry> entries = storage.list(path);
  return std::ranges::any_of(entries, [](const Entry& entry) {
    return entry.name.starts_with("shard-") && entry.name.ends_with(".h5");
  });
}

bool is_safetensors(Storage& storage, const Path& path) {
  const EntryKind kind = storage.kind(path);
  if (kind == EntryKind::File) return path.extension() == ".safetensors";
  return kind == EntryKind::Directory && safetensors::is_model_folder(storage, path);
}

/// Archives of Keras and of NeMo hold what torch.save's archives hold, too.
bool is_torch_alone(Storage& storage, const Path& path) {
  const Path suffix = path.extension();
  return suffix != kKerasSuffix && suffix != kNemoSuffix && is_torch(storage, path);
}

/// For formats without tags: open_source() refuses a tag for them.
template <auto Open>
std::unique_ptr<Source> open_whole(Storage& storage, const Path& path, const OpenOptions&) {
  return Open(storage, path);
}
/// For formats in which only the tag is a choice.
template <auto Open>
std::unique_ptr<Source> open_tag(Storage& storage, const Path& path, const OpenOptions& options) {
  return Open(storage, path, options.tag);
}

std::unique_ptr<Source> open_ranks(Storage& storage, const Path& path, const OpenOptions& options) {
  return open_dcp(storage, path, options);
}

std::unique_ptr<Sink> make_native(Storage& storage, const Output& to, Catalog catalog) {
  return make_native_sink(storage, to.path, to.tag, std::move(catalog), to.compression, to.share,
                          to.side_files, to.moves_latest);
}
std::unique_ptr<Sink> make_deepspeed(Storage& storage, const Output& to, Catalog catalog) {
  if (to.parallel.any()) {
    return make_deepspeed_parallel_sink(storage, to.path, to.tag, std::move(catalog), to.parallel,
                                        to.share, to.side_files, to.moves_latest);
  }
  return make_deepspeed_sink(storage, to.path, to.tag, std::move(catalog), to.share, to.side_files,
                             to.moves_latest);
}
std::unique_ptr<Sink> make_universal(Storage& storage, const Output& to, Catalog catalog) {
  return make_deepspeed_universal_sink(storage, to.path, to.tag, std::move(catalog), to.share,
                                       to.side_files, to.moves_latest);
}
std::unique_ptr<Sink> make_dcp(Storage& storage, const Output& to, Catalog catalog) {
  return make_dcp_sink(storage, to.path, std::move(catalog), to.share, to.layout, to.key_layout,
                       to.side_files);
}
std::unique_ptr<Sink> make_safetensors(Storage& storage, const Output& to, Catalog catalog) {
  return make_safetensors_sink(storage, to.path, std::move(catalog),
                               {.max_shard_bytes = to.max_shard_bytes,
                                .metadata = to.metadata,
                                .side_files = to.side_files,
                                .stem = to.stem},
                               to.share);
}
std::unique_ptr<Sink> make_torch(Storage& storage, const Output& to, Catalog catalog) {
  TorchOptions options{
      .max_shard_bytes = to.max_shard_bytes, .side_files = to.side_files, .layout = to.layout};
  if (to.stem == "diffusion_pytorch_model") options.stem = to.stem;  // as diffusers calls both
  return make_torch_sink(storage, to.path, std::move(catalog), std::move(options), to.share);
}
template <bool IsAccelerate>
std::unique_ptr<Sink> make_trainer(Storage& storage, const Output& to, Catalog catalog) {
  return make_trainer_sink(storage, to.path, std::move(catalog),
                           {.is_accelerate = IsAccelerate,
                            .max_shard_bytes = to.max_shard_bytes,
                            .side_files = to.side_files,
                            .stem = to.stem,
                            .layout = to.layout},
                           to.share);
}
std::unique_ptr<Sink> make_hdf5(Storage& storage, const Output& to, Catalog catalog) {
  return make_hdf5_sink(storage, to.path, std::move(catalog), to.share);
}
std::unique_ptr<Sink> make_npz(Storage& storage, const Output& to, Catalog catalog) {
  return make_npz_sink(storage, to.path, std::move(catalog), to.share);
}
std::unique_ptr<Sink> make_gguf(Storage& storage, const Output& to, Catalog catalog) {
  const auto config =
      std::ranges::find(to.side_files, "config.json", &SideFiles::value_type::first);
  const std::string_view text =
      config == to.side_files.end() ? std::string_view() : std::string_view(config->second);
  return make_gguf_sink(storage, to.path, std::move(catalog), text, to.share);
}

constexpr std::array<Row, 11> kFormats = {{
    {{"native", "UniShard's sharded checkpoints", OutputShape::Tags},
     is_native,
     open_tag<open_native>,
     make_native,
     is_native_tag},
    {{"deepspeed", "DeepSpeed ZeRO checkpoints, stages 0 to 3", OutputShape::Tags},
     is_deepspeed,
     open_deepspeed,
     make_deepspeed,
     deepspeed::is_regular_tag},
    {{"deepspeed-universal", "DeepSpeed universal checkpoints", OutputShape::Tags},
     is_deepspeed_universal,
     open_deepspeed_universal,
     make_universal,
     deepspeed::is_universal_tag},
    {{"trainer", "checkpoints of Hugging Face's Trainer: model, optimizer.pt, trainer_state.json",
      OutputShape::Folder},
     is_trainer,
     open_trainer,
     make_trainer<false>,
     nullptr,
     "a checkpoint of a Trainer"},
    {{"accelerate", "folders of accelerate's save_state: model, optimizer.bin",
      OutputShape::Folder},
     is_accelerate,
     open_trainer,
     make_trainer<true>,
     nullptr,
     "a folder of accelerate"},
    {{"dcp", "PyTorch distributed checkpoints (FSDP)", OutputShape::Folder},
     is_dcp,
     open_ranks,
     make_dcp,
     is_one_dcp},
    {{"safetensors", "one .safetensors file, or a Hugging Face folder of them",
      OutputShape::FileOrFolder},
     is_safetensors,
     open_whole<open_safetensors>,
     make_safetensors,
     nullptr,
     "a safetensors model"},
    {{"npz", "one .npz file of numpy; .npy files are read too", OutputShape::File},
     is_npz,
     open_whole<open_npz>,
     make_npz,
     nullptr,
     "a file of numpy"},
    {{"gguf", "one GGUF file, not quantized", OutputShape::File},
     is_gguf,
     open_whole<open_gguf>,
     make_gguf,
     nullptr,
     "a GGUF file"},
    {{"torch", "a torch.save file, or a Hugging Face folder with pytorch_model.bin",
      OutputShape::FileOrFolder},
     is_torch_alone,
     open_torch,
     make_torch,
     nullptr,
     "a torch.save file"},
    {{"hdf5", "one HDF5 file with a data set per tensor, as h5py reads and writes them",
      OutputShape::File},
     is_hdf5,
     open_whole<open_hdf5>,
     make_hdf5,
     nullptr,
     "an HDF5 file"},
}};

const Row& row_of(std::string_view name) {
  const auto* row = std::ranges::find(kFormats, name, [](const Row& r) { return r.entry.name; });
  if (row != kFormats.end()) return *row;
  std::string known;
  for (const Row& other : kFormats)
    known += (known.empty() ? "" : ", ") + std::string(other.entry.name);
  raise(ErrorCode::Unsupported, "there is no format " + quote(name), "known: " + known);
}

const Row* find_row(Storage& storage, const Path& path) {
  for (const Row& row : kFormats) {
    if (row.recognises(storage, path)) return &row;
  }
  return nullptr;
}

/// Returns the format of the checkpoint `folder`; empty when it is none.
std::string format_of_one(Storage& storage, const Path& folder) {
  const auto* row = std::ranges::find_if(kFormats, [&](const Row& each) {
    return (each.is_one != nullptr ? each.is_one : each.recognises)(storage, folder);
  });
  return row == kFormats.end() ? std::string() : std::string(row->entry.name);
}

/// The folder in which UniShard's plug-in for accelerate saves a model beside accelerate's files,
/// and that of a second model.
constexpr std::string_view kWithin = "unishard", kSecondWithin = "unishard_1";

/// Does the work of find_within_accelerate() for a folder that is no checkpoint itself.
std::optional<Path> find_within(Storage& storage, const Path& path) {
  if (!is_native(storage, path / kWithin)) return std::nullopt;
  if (is_native(storage, path / kSecondWithin)) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{} holds the checkpoints of several models", path.string()),
          fmt::format("name one of them, such as {}", (path / kWithin).string()));
  }
  return path / kWithin;
}

/// A numbered checkpoint of a Trainer with DeepSpeed or UniShard is a folder with one tag, beside
/// which the model's files may be.
std::string format_of_folder(Storage& storage, const Path& folder) {
  std::string one = format_of_one(storage, folder);
  if (one == "native" || !checkpoint_number(folder.filename().string())) return one;
  const Row* const row = find_row(storage, folder);
  if (row == nullptr) return is_native(storage, folder / kWithin) ? "accelerate" : "";
  return std::string(row->entry.name == "native" ? "trainer" : row->entry.name);
}

std::vector<TagFolder> sub_folders(Storage& storage, const Path& path) {
  std::vector<TagFolder> folders;
  for (const Entry& entry : storage.list(path)) {
    const bool is_folder = entry.kind == EntryKind::Directory ||
                           (entry.kind == EntryKind::Other &&
                            storage.kind(path / entry.name) == EntryKind::Directory);  // by a link
    if (is_folder && !is_leftover(entry.name))
      folders.push_back(
          {entry.name, format_of_folder(storage, path / entry.name), step_in_name(entry.name)});
  }
  std::ranges::sort(folders, {}, [](const TagFolder& each) { return natural_order(each.tag); });
  return folders;
}

}  // namespace

std::vector<FormatEntry> known_formats() {
  std::vector<FormatEntry> entries;
  entries.reserve(std::size(kFormats));
  for (const Row& row : kFormats) entries.push_back(row.entry);
  return entries;
}

FormatEntry format_entry(std::string_view name) { return row_of(name).entry; }

std::vector<TagFolder> list_tag_folders(Storage& storage, const Path& path) {
  if (storage.kind(path) != EntryKind::Directory || !format_of_one(storage, path).empty())
    return {};
  return sub_folders(storage, path);
}

std::vector<TagFolder> list_sub_folders(Storage& storage, const Path& path) {
  if (storage.kind(path) != EntryKind::Directory) return {};
  return sub_folders(storage, path);
}

namespace {

/// A file of the kind that a model had been read from gets back the names that wrappers gave it:
/// DeepSpeed loads by these names, and a copy of a file of weights is a copy. A folder is for
/// from_pretrained, which knows the plain names.
void put_wrappers_back(const Output& output, Catalog& catalog) {
  const bool is_deepspeed = output.format.starts_with("deepspeed");
  const bool is_file = format_entry(output.format).shape != OutputShape::Tags &&
                       output.max_shard_bytes == 0 && is_plain_model(catalog);
  const bool has_own_way = output.format == "torch" || output.format == "dcp";
  if (is_deepspeed || (is_file && !has_own_way))
    wrap_names(catalog, output.format.substr(0, output.format.find('-')));
}

}  // namespace

std::unique_ptr<Sink> make_sink(Storage& storage, const Output& output, Catalog catalog) {
  put_wrappers_back(output, catalog);
  return row_of(output.format).make(storage, output, std::move(catalog));
}

namespace {

/// Whether a program has saved its state to `path` without UniShard's plug-in, which it had at
/// other times.
bool has_plain_state(Storage& storage, const Path& path, const Row& row) {
  const auto has_file = [&](std::string_view name) {
    return storage.kind(path / name) == EntryKind::File;
  };
  if (row.entry.name == "native")
    return has_file(trainer::file_names(trainer::Program::Trainer).optimizer) ||
           has_file(trainer::file_names(trainer::Program::Accelerate).optimizer);
  const bool has_tensors = row.entry.shape != OutputShape::Tags && has_file("random_states_0.pkl");
  if (row.entry.name != "trainer" && row.entry.name != "accelerate" && !has_tensors) return false;
  return is_native(storage, path / kWithin);
}

/// Returns what is wrong with a folder in which two programs have saved, of which either could be
/// meant. Empty for every other path.
std::string problem_of_two(Storage& storage, const Path& path, const Row* row) {
  if (row == nullptr || storage.kind(path / kManifestFile) == EntryKind::File) return {};
  const bool is_native = row->entry.name == "native";
  std::string_view other;
  if (is_native && dcp::holds_checkpoint(storage, path)) {
    other = "a PyTorch distributed checkpoint";
  } else if (storage.kind(path) == EntryKind::Directory && has_plain_state(storage, path, *row)) {
    other = "a model or optimizer that was saved without UniShard";
  } else {
    return {};
  }
  return fmt::format(
      "{} holds {} and the checkpoints of UniShard: name {}, or move the files of "
      "one of them away",
      path.string(), other, is_native ? "the folder of a tag" : (path / kWithin).string());
}

/// Returns whether files of the format have the settings of each optimizer.
bool keeps_settings(std::string_view format) {
  return format == "torch" || format == "dcp" || format == "trainer" || format == "accelerate" ||
         format == "deepspeed";
}

bool has_lost_optimizer(const Source& source) {
  const Losses losses = source.losses();
  return std::ranges::any_of(losses, [](const Loss& loss) {
    return loss.role == Role::Optimizer || loss.role == Role::Setting;
  });
}

/// Returns the name of the optimizer's file in a folder of the Trainer or of accelerate that has no
/// model; empty for every other path.
std::string optimizer_without_model(Storage& storage, const Path& path) {
  constexpr std::array<const char*, 3> kOfTrainer = {"trainer_state.json", "training_args.bin",
                                                     "rng_state.pth"};
  const auto has = [&](std::string_view name) {
    return storage.kind(path / name) == EntryKind::File;
  };
  if (has("optimizer.pt") && std::ranges::any_of(kOfTrainer, has)) return "optimizer.pt";
  return has("optimizer.bin") && has("random_states_0.pkl") ? "optimizer.bin" : "";
}

/// Returns the first folder in `path` into which this user may not look; empty when there is none.
std::string closed_folder(Storage& storage, const Path& path) {
  if (storage.kind(path) != EntryKind::Directory) return {};
  const std::vector<Entry> entries = storage.list(path);
  const auto closed = std::ranges::find(entries, EntryKind::Closed, &Entry::kind);
  return closed == entries.end() ? std::string() : (path / closed->name).string();
}

/// Returns what is wrong with the model of a folder; nullopt for every other path.
std::optional<std::string> problem_of_model(Storage& storage, const Path& path, const Row* row) {
  if (!has_model_files(row == nullptr ? "" : row->entry.name)) return std::nullopt;
  if (storage.kind(path) != EntryKind::Directory) return std::nullopt;
  return broken_model(storage, path);
}

}  // namespace

Probe probe(Storage& storage, const Path& path) {
  const Row* const row = find_row(storage, path);
  std::string problem = problem_of_two(storage, path, row);
  if (!problem.empty()) return {{}, std::move(problem), true};
  if (row != nullptr) return {std::string(row->entry.name), {}};
  if (auto broken = problem_of_model(storage, path, row))
    return {.problem = std::move(*broken), .code = ErrorCode::Corrupt};
  if (has_named_parts(storage, path)) return {"torch", {}};
  std::vector<std::string> checkpoints;
  for (const TagFolder& folder : list_tag_folders(storage, path)) {
    if (!folder.format.empty()) checkpoints.push_back(folder.tag);
  }
  // accelerate saves the optimizer of FSDP into a folder beside the model's.
  const auto is_optimizer = [](const std::string& name) { return name.starts_with("optimizer_"); };
  if (!checkpoints.empty() && std::ranges::all_of(checkpoints, is_optimizer)) {
    return {{},
            fmt::format("{} has {}, and pytorch_model_fsdp_0, the folder of the model, is not "
                        "there: the save did not finish, or the folder is gone",
                        path.string(), fmt::join(checkpoints, ", "))};
  }
  const std::string optimizer = optimizer_without_model(storage, path);
  if (!checkpoints.empty()) {
    return {{},
            fmt::format("{} is a folder of checkpoints: name one of them, {}{}", path.string(),
                        fmt::join(checkpoints, ", "),
                        optimizer.empty()
                            ? ""
                            : fmt::format(" ({} is beside them, and is not read with any of them)",
                                          optimizer))};
  }
  if (!optimizer.empty()) {
    return {{},
            fmt::format("{} has {}, and its model is not there: model.safetensors, "
                        "pytorch_model.bin or adapter_model.safetensors is missing beside it",
                        path.string(), optimizer)};
  }
  if (const auto foreign = recognise_foreign(storage, path)) {
    return {{}, fmt::format("{} is {}", path.string(), foreign->text)};
  }
  if (const std::string closed = closed_folder(storage, path); !closed.empty())
    return {.problem = fmt::format("{} holds no checkpoint that this user can read: looking into "
                                   "{}: Permission denied",
                                   path.string(), closed),
            .code = ErrorCode::Io};
  const bool is_missing = storage.kind(path) == EntryKind::Missing;
  return {.problem = explain_unknown(storage, path),
          .code = is_missing ? ErrorCode::NotFound : ErrorCode::Unsupported};
}

namespace {

/// Does the work of find_numbered_checkpoint(). `row` is that of `path`.
std::optional<Path> find_numbered(Storage& storage, const Path& path, const Row* row,
                                  const std::optional<std::string>& tag) {
  if (storage.kind(path) != EntryKind::Directory) return std::nullopt;
  if (row != nullptr && (!tag || row->tagless.empty())) return std::nullopt;
  std::optional<std::pair<std::uint64_t, Path>> newest, unfinished;
  for (const Entry& entry : storage.list(path)) {
    const auto number = checkpoint_number(entry.name);
    if (!number || entry.kind == EntryKind::Closed || (tag && entry.name != *tag)) continue;
    const Path folder = path / entry.name;
    const bool is_here = find_row(storage, folder) != nullptr;
    const bool is_within = !is_here && is_native(storage, folder / kWithin);
    if (!is_here && !is_within && storage.kind(folder) != EntryKind::Directory) continue;
    auto& found = is_here || is_within ? newest : unfinished;
    if (!found || found->first < *number)
      found.emplace(*number, is_within ? folder / kWithin : folder);
  }
  if (newest && unfinished && unfinished->first > newest->first) {
    raise(ErrorCode::Corrupt,
          fmt::format("{} is the newest checkpoint there and holds no model: its save did not "
                      "finish, or its files were removed",
                      unfinished->second.string()),
          fmt::format("name the one before it, {}, if it is meant", newest->second.string()));
  }
  if (newest) return newest->second;
  return row == nullptr ? dcp::find_verl(storage, path, tag) : std::nullopt;
}

OpenOptions without_tag(OpenOptions options) {
  options.tag.reset();
  return options;
}

}  // namespace

std::optional<Path> find_numbered_checkpoint(Storage& storage, const Path& path,
                                             const std::optional<std::string>& tag) {
  return find_numbered(storage, path, find_row(storage, path), tag);
}

std::optional<Path> find_within_accelerate(Storage& storage, const Path& path) {
  if (find_row(storage, path) != nullptr) return std::nullopt;
  return find_within(storage, path);
}

std::unique_ptr<Source> open_source_as(Storage& storage, std::string_view format,
                                       const Path& path) {
  return row_of(format).open(storage, path, {});
}

namespace {

/// The Trainer has its count beside the files of FSDP, too, and those of DeepSpeed, whose folder of
/// a tag may be the one that was named. The reader of its own files has compared it.
void add_doubts_about_steps(Storage& storage, const Path& path, std::string_view format,
                            Source& source) {
  const bool is_deepspeed = format.starts_with("deepspeed");
  if (format != "dcp" && !is_deepspeed) return;
  const bool is_here = storage.kind(path / trainer::kTrainerState) == EntryKind::File;
  const Path& folder = is_here || !is_deepspeed ? path : path.parent_path();
  Losses losses;
  if (const auto steps = trainer::read_progress(storage, folder, losses))
    source.add_remarks(doubts_about_steps(source.catalog(), *steps,
                                          checkpoint_number(folder.filename().string()),
                                          trainer::has_one_process(storage, folder)));
  if (is_here) source.add_losses(losses);
}

void add_doubts_about_states(std::string_view format, Source& source) {
  source.add_remarks(doubts_about_states(source.catalog(), source.losses()));
  if (keeps_settings(format) && !has_lost_optimizer(source))
    source.add_remarks(doubts_about_settings(source.catalog()));
}

/// Opens `path` as the format of `row`, and says of a file what it is a part of. `like` is for DCP
/// only.
std::unique_ptr<Source> open_as(Storage& storage, const Path& path, const Row& row,
                                const OpenOptions& options, const dcp::LikeModel* like = nullptr) {
  if (options.tag && !row.tagless.empty()) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{} is {}: it has no tags to choose from", path.string(), row.tagless));
  }
  if (options.from_rank && row.entry.name != "dcp") {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{} holds no files that ranks wrote by themselves, of which one could be "
                      "chosen (--from-rank)",
                      path.string()));
  }
  if (!options.merge_rules.is_null() && !row.entry.name.starts_with("deepspeed")) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{} is no checkpoint of DeepSpeed, and holds no files of torch.save whose "
                      "names have the number of a rank: --merge-rules puts the parts of these "
                      "together",
                      path.string()),
          "leave the option out where the tensors are whole. `diff` has --merge-rules-a and "
          "--merge-rules-b for one side");
  }
  // UniShard's own files are never written again, and have checksums.
  const auto watched =
      row.entry.name == "native" ? nullptr : std::make_shared<WatchedStorage>(storage);
  Storage& files = watched ? *watched : storage;
  auto source =
      like == nullptr ? row.open(files, path, options) : open_dcp(files, path, options, like);
  source->own_storage(watched);
  if (source->path().empty()) source->set_path(path);
  // In the other formats, which record the shapes of parameters, an empty one is empty.
  if (row.entry.name != "native" && !row.entry.name.starts_with("deepspeed"))
    require_values(source->catalog(), path);
  const Path& model = source->model_folder().empty() ? path : source->model_folder();
  if (storage.kind(path) == EntryKind::Directory)
    source->add_losses(row.entry.name == "native"
                           ? damaged_beside_tag(storage, source->path(), source->catalog())
                           : files_beside(storage, path, row.entry.name, *source));
  if (!source->part_of() && storage.kind(path) == EntryKind::File) {
    if (auto part = describe_part(storage, path)) {
      source->set_part_of(std::move(*part));
    } else if (auto others = doubt_about_lone(path)) {
      source->add_losses({std::move(*others)});
    }
  }
  if (!source->part_of() && row.entry.name == "safetensors")
    source->add_losses(missing_of_torchao(source->catalog()));
  if (has_model_files(row.entry.name) && storage.kind(path) == EntryKind::Directory)
    source->add_remarks(doubts_about_model(storage, model, source->catalog()));
  if (has_model_files(row.entry.name)) source->add_remarks(doubts_about_tails(storage, path));
  add_doubts_about_steps(storage, path, row.entry.name, *source);
  add_doubts_about_states(row.entry.name, *source);
  return source;
}

}  // namespace

namespace {

/// Opens the parts of a model that tensor parallelism cut; null where there are none.
std::unique_ptr<Source> open_parts(Storage& storage, const Path& path, const OpenOptions& options) {
  const auto watched = std::make_shared<WatchedStorage>(storage);
  auto source = open_cut_parts(*watched, path, options);
  if (source) {
    source->own_storage(watched);
    source->set_path(path);
    add_doubts_about_states(source->format(), *source);
  }
  return source;
}

}  // namespace

std::unique_ptr<Source> open_source(Storage& storage, const Path& path,
                                    const std::optional<std::string>& tag) {
  return open_source(storage, path, OpenOptions{.tag = tag});
}

std::unique_ptr<Source> open_source(Storage& storage, const Path& path,
                                    const OpenOptions& options) {
  const Row* const row = find_row(storage, path);
  if (const auto numbered = find_numbered(storage, path, row, options.tag))
    return open_source(storage, *numbered, without_tag(options));
  if (!options.tag) {
    const std::string problem = problem_of_two(storage, path, row);
    if (!problem.empty()) raise(ErrorCode::Unsupported, problem);
  }
  if (const auto broken = problem_of_model(storage, path, row))
    raise(ErrorCode::Corrupt, *broken, "bring the file back, or name another file itself");
  const bool has_rules = !options.merge_rules.is_null();
  // Files of ranks are copies, unless rules say that they are parts.
  if (row != nullptr && row->entry.name == "dcp" && has_rules) {
    if (auto joined = open_parts(storage, path, options)) return joined;
  }
  if (row != nullptr) return open_as(storage, path, *row, options);
  if (const auto within = find_within(storage, path)) return open_source(storage, *within, options);
  if (auto joined = open_parts(storage, path, options)) return joined;
  const Probe found = probe(storage, path);
  raise(found.code, found.problem);
}

std::unique_ptr<Source> open_source_like(Storage& storage, const Path& path, const Path& like,
                                         const OpenOptions& options) {
  const Row* const row = find_row(storage, path);
  if (const auto numbered = find_numbered(storage, path, row, options.tag))
    return open_source_like(storage, *numbered, like, without_tag(options));
  if (row == nullptr) return open_source(storage, path, options);  // the message says what it is
  if (row->entry.name != "dcp") {
    raise(
        ErrorCode::InvalidArgument,
        fmt::format("{} is a checkpoint of the format {}, which tells the names and shapes of its "
                    "tensors",
                    path.string(), row->entry.name),
        "leave --like out");
  }
  const dcp::LikeModel shapes = dcp::like_model(*open_source(storage, like));
  return open_as(storage, path, *row, options, &shapes);
}

}  // namespace unishard::converters
