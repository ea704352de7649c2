#include "formats/format_detection.hpp"

#include "unishard/format/checkpoint_folder.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/manifest.hpp"
#include "unishard/format/staging_names.hpp"

#include "containers/git_lfs.hpp"
#include "reading/folder_names.hpp"
#include "reading/unjoined_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

namespace unishard::converters {
namespace {

/// What to do with arrays that only another library can load.
constexpr std::string_view kSaveArrays =
    "load it with that library and save its arrays with numpy.savez or safetensors";
constexpr std::string_view kPickle =
    "a Python pickle (pickle, joblib, scikit-learn), which runs code when it is loaded";
constexpr std::string_view kNameOne = "name one of them";

/// A file name that identifies a format. `prefix` and `suffix` must both match.
struct Sign {
  std::string_view prefix, suffix, format;
  std::string_view text;  ///< of what the folder is
  std::string_view next;  ///< what to do
};

constexpr std::array<Sign, 18> kSigns = {{
    {"", "_optim_states.pt", "deepspeed", "a part of a DeepSpeed checkpoint without its model file",
     ""},
    {"saved_model", ".pb", "tensorflow", "a TensorFlow SavedModel", kSaveArrays},
    {"", ".index", "tensorflow", "a TensorFlow checkpoint", kSaveArrays},
    {"", "_CHECKPOINT_METADATA", "orbax", "an Orbax checkpoint of JAX", kSaveArrays},
    {"manifest", ".ocdbt", "orbax", "an Orbax checkpoint of JAX", kSaveArrays},
    {"_METADATA", "_METADATA", "orbax", "an Orbax checkpoint of JAX", kSaveArrays},
    {"com.apple.CoreML", "", "coreml", "a Core ML model", kSaveArrays},
    {"", ".gguf", "gguf", "a folder of GGUF files", kNameOne},
    {"", ".npz", "npz", "a folder of .npz files", kNameOne},
    {"", ".pt", "torch", "a folder of torch.save files", kNameOne},
    {"", ".pth", "torch", "a folder of torch.save files", kNameOne},
    {"", ".bin", "torch", "a folder of torch.save files", kNameOne},
    {"", ".ckpt", "torch", "a folder of .ckpt files", kNameOne},
    {"tf_model", ".h5", "hdf5", "a TensorFlow model of Hugging Face", "name the file"},
    {"", ".onnx", "onnx", "a folder of ONNX models", kSaveArrays},
    {"", ".msgpack", "flax", "a Flax model", kSaveArrays},
    {"", ".npy", "npz", "a folder of .npy files", kNameOne},
    {"", ".keras", "keras", "a folder of Keras models", kNameOne},
}};

/// `folder` is empty, or that of the entries within the folder that is asked about.
std::optional<ForeignFormat> recognise_names(const std::vector<Entry>& entries,
                                             const Path& folder) {
  for (const Sign& sign : kSigns) {
    for (const Entry& entry : entries) {
      if (entry.name.starts_with(sign.prefix) && entry.name.ends_with(sign.suffix)) {
        return ForeignFormat{std::string(sign.format),
                             fmt::format("{} (it holds {}){}{}", sign.text,
                                         unishard::quote((folder / entry.name).string()),
                                         sign.next.empty() ? "" : ": ", sign.next)};
      }
    }
  }
  return std::nullopt;
}

/// Bytes at a place in a file that identify a format; for files that are named in any way.
struct Magic {
  std::size_t offset;
  std::string_view bytes, format, text, next;
};
constexpr std::array<Magic, 10> kMagics = {{
    {0, kGitLfsBegin, "git-lfs", kGitLfsPointer, ""},
    {0, "ftrt", "tensorrt", "a TensorRT engine", "take the model that it was built from"},
    {4, "TFL3", "tensorflow", "a TensorFlow Lite model", kSaveArrays},
    {0, "\x80\x02", "pickle", kPickle, kSaveArrays},
    {0, "\x80\x03", "pickle", kPickle, kSaveArrays},
    {0, "\x80\x04", "pickle", kPickle, kSaveArrays},
    {0, "\x80\x05", "pickle", kPickle, kSaveArrays},
    {0, "\x1f\x8b", "gzip", "compressed with gzip", "unpack it"},
    {1, "7zXZ", "xz", "compressed with xz", "unpack it"},
    {0, "\x28\xb5\x2f\xfd", "zstd", "compressed with zstd", "unpack it"},
}};

/// The end of a file's name, for formats whose first bytes say nothing.
struct Suffix {
  std::string_view suffix, format, text, next;
};
constexpr std::array<Suffix, 21> kFormatSuffixes = {{
    {kNemoSuffix, "nemo", "an archive of NeMo (tar), which may hold a model in parts",
     "unpack it with tar and name the model_weights.ckpt in it"},
    {kKerasSuffix, "keras", "a Keras model", "unzip it and name the model.weights.h5 in it"},
    {".onnx", "onnx", "an ONNX model", kSaveArrays},
    {".pb", "tensorflow", "a graph of TensorFlow", kSaveArrays},
    {".index", "tensorflow", "a part of a TensorFlow checkpoint", kSaveArrays},
    {".data-00000-of-00001", "tensorflow", "a part of a TensorFlow checkpoint", kSaveArrays},
    {".tflite", "tensorflow", "a TensorFlow Lite model", kSaveArrays},
    {".msgpack", "flax", "a Flax model", kSaveArrays},
    {".ocdbt", "orbax", "a part of an Orbax checkpoint of JAX", kSaveArrays},
    {".engine", "tensorrt", "a TensorRT engine", "take the model that it was built from"},
    {".plan", "tensorrt", "a TensorRT engine", "take the model that it was built from"},
    {".mlmodel", "coreml", "a Core ML model", kSaveArrays},
    {".pdparams", "paddle", "a PaddlePaddle model", kSaveArrays},
    {".joblib", "pickle", kPickle, kSaveArrays},
    {".pkl", "pickle", kPickle, kSaveArrays},
    {".pickle", "pickle", kPickle, kSaveArrays},
    {".distcp", "dcp", "a part of a PyTorch distributed checkpoint", "name its folder"},
    {".index.json", "index", "the index of a model's files", "name its folder"},
    {".gguf", "gguf", "no GGUF file, though its name ends so",
     "it may be cut short or another file under this name"},
    {".h5", "hdf5", "no HDF5 file, though its name ends so",
     "it may be cut short or another file under this name"},
    {".pt", "torch", "no torch.save file, though its name ends so",
     "it may be cut short or another file under this name"},
}};

ForeignFormat made(std::string_view format, std::string_view text, std::string_view next) {
  return {std::string(format), fmt::format("{}{}{}", text, next.empty() ? "" : ": ", next)};
}

std::optional<ForeignFormat> recognise_file(Storage& storage, const Path& path) {
  const std::unique_ptr<File> file = storage.open(path);
  std::array<char, 32> head{};
  const std::size_t size = std::min<std::uint64_t>(file->size(), head.size());
  file->read_at(0, std::as_writable_bytes(std::span(head).first(size)));
  const std::string_view text(head.data(), size);
  for (const Magic& magic : kMagics) {
    if (text.size() >= magic.offset && text.substr(magic.offset).starts_with(magic.bytes))
      return made(magic.format, magic.text, magic.next);
  }
  const std::string name = path.filename().string();
  const auto* const named = std::ranges::find_if(
      kFormatSuffixes, [&](const Suffix& each) { return name.ends_with(each.suffix); });
  if (named == kFormatSuffixes.end()) return std::nullopt;
  return made(named->format, named->text, named->next);
}

}  // namespace

std::vector<SignedFormat> signed_formats() {
  std::vector<SignedFormat> formats;
  for (const Sign& sign : kSigns) {
    const std::string files = sign.prefix == sign.suffix
                                  ? std::string(sign.prefix)
                                  : fmt::format("{}*{}", sign.prefix, sign.suffix);
    formats.push_back({std::string(sign.format), std::string(sign.text), files});
  }
  for (const Suffix& suffix : kFormatSuffixes)
    formats.push_back(
        {std::string(suffix.format), std::string(suffix.text), fmt::format("*{}", suffix.suffix)});
  for (const Magic& magic : kMagics)
    formats.push_back({std::string(magic.format), std::string(magic.text), ""});
  return formats;
}

std::optional<ForeignFormat> recognise_foreign(Storage& storage, const Path& path) {
  if (storage.kind(path) == EntryKind::File) return recognise_file(storage, path);
  if (storage.kind(path) != EntryKind::Directory) return std::nullopt;
  if (auto parts = describe_unjoined_parts(storage, path))
    return ForeignFormat{"parts", std::move(*parts)};
  const std::vector<Entry> entries = storage.list(path);
  if (auto found = recognise_names(entries, {})) return found;
  for (const Entry& entry : entries) {
    if (entry.kind != EntryKind::Directory || is_leftover(entry.name)) continue;
    if (auto found = recognise_names(storage.list(path / entry.name), entry.name)) return found;
  }
  return std::nullopt;
}

namespace {

/// Returns what the project folder of accelerate is; "" for every other folder.
std::string explain_project(Storage& storage, const Path& path) {
  const Path folder = path / "checkpoints";
  if (storage.kind(folder) != EntryKind::Directory) return {};
  std::optional<std::pair<std::uint64_t, std::string>> newest;
  for (const Entry& entry : storage.list(folder)) {
    const auto number = checkpoint_number(entry.name);
    if (number && (!newest || newest->first < *number)) newest.emplace(*number, entry.name);
  }
  if (!newest) return {};
  return fmt::format(
      "{} is the project folder of a run (of accelerate, for example), whose checkpoints lie "
      "below: name {}, the newest, or another one there",
      path.string(), (folder / newest->second).string());
}

}  // namespace

std::string explain_unknown(Storage& storage, const Path& path) {
  const std::string name = path.string();
  const EntryKind kind = storage.kind(path);
  std::error_code code;
  if (kind == EntryKind::Missing && std::filesystem::is_symlink(path, code))
    return fmt::format("{} is a link to what is not there", name);
  if (kind == EntryKind::Missing) return fmt::format("{} does not exist", name);
  if (kind == EntryKind::Other) return fmt::format("{} is neither a file nor a folder", name);
  if (kind == EntryKind::File) {
    if (path.filename() == kManifestFile || path.filename() == kLatestFile) {
      return fmt::format("{} is a part of a checkpoint: name its folder instead", name);
    }
    return fmt::format(
        "{} is in no known format (known: checkpoints of UniShard, DeepSpeed and DCP, torch.save "
        "files, *.safetensors, HDF5, .npz and GGUF files)",
        name);
  }
  if (is_partial_name(path.filename().string())) {
    return fmt::format("{} is the unfinished work of an interrupted save", name);
  }
  const std::vector<Entry> entries = storage.list(path);
  if (entries.empty()) return fmt::format("{} is an empty folder", name);
  const auto is_partial = [](const Entry& entry) { return is_partial_name(entry.name); };
  if (std::all_of(entries.begin(), entries.end(), is_partial)) {
    return fmt::format("{} holds only interrupted saves ({}): no save was ever completed there",
                       name, unishard::quote(entries.front().name));
  }
  if (std::string project = explain_project(storage, path); !project.empty()) return project;
  const auto is_shard = [](const Entry& entry) {
    return entry.name.starts_with("shard-") && entry.name.ends_with(".h5");
  };
  if (std::any_of(entries.begin(), entries.end(), is_shard)) {
    return fmt::format("{} holds shards and no manifest.json: it is not a complete checkpoint",
                       name);
  }
  return fmt::format(
      "{} holds no checkpoint (expected a folder with {} and tags, a tag with {}, or "
      "*.safetensors)",
      name, kLatestFile, kManifestFile);
}

}  // namespace unishard::converters
