#include "formats/safetensors/model_folder.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include "reading/completeness.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

namespace unishard::converters::safetensors {
namespace {

/// The names that from_pretrained of transformers and of diffusers look for.
constexpr std::array<std::string_view, 2> kSingleFiles = {"model.safetensors",
                                                          "diffusion_pytorch_model.safetensors"};
constexpr std::string_view kIndexSuffix = ".index.json";
constexpr std::uint64_t kIndexBytesMax = std::uint64_t{256} << 20;

struct Names {
  std::vector<std::string> files;
  std::vector<std::string> indices;
};

Names safetensors_names(Storage& storage, const Path& folder) {
  Names names;
  for (const Entry& entry : storage.list(folder)) {
    const bool is_tensors = entry.name.ends_with(".safetensors");
    // "model.safetensors.index.json", and "model.safetensors.index.fp16.json" of a variant
    const bool is_index = entry.name.find(".safetensors.index.") != std::string::npos &&
                          entry.name.ends_with(".json");
    if (!is_tensors && !is_index) continue;
    // In the Hugging Face cache the files are links.
    const bool is_file =
        entry.kind == EntryKind::File ||
        (entry.kind == EntryKind::Other && storage.kind(folder / entry.name) == EntryKind::File);
    if (is_file) (is_tensors ? names.files : names.indices).push_back(entry.name);
  }
  return names;
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Whether torch.save's files have the names that from_pretrained looks for.
bool has_torch_model(Storage& storage, const Path& folder) {
  constexpr std::array<std::string_view, 1> kSuffix = {".bin"};
  const std::vector<std::string> names = files_with_suffix(storage, folder, kSuffix);
  return storage.kind(folder / "pytorch_model.bin.index.json") == EntryKind::File ||
         std::ranges::any_of(names, [](const std::string& name) {
           return name == "pytorch_model.bin" || name.starts_with("pytorch_model-");
         });
}

ModelFolder read_index(Storage& storage, const Path& folder, const std::string& name) {
  const Path path = folder / name;
  const auto fail = [&](const std::string& problem) {
    raise(ErrorCode::Corrupt, fmt::format("{}: {}", path.string(), problem));
  };
  const SortedJson json =
      parse_sorted_json(read_text(storage, path, kIndexBytesMax), path.string());
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object()) fail("there is no weight_map");
  ModelFolder model;
  model.index = name;
  std::set<std::string> files;
  for (const auto& [tensor, value] : map->items()) {
    if (!value.is_string()) {
      fail(fmt::format("weight_map {}: the value is not a string", unishard::quote(tensor)));
    }
    const auto& file = value.get_ref<const std::string&>();
    if (file.find('/') != std::string::npos || file.find('\0') != std::string::npos) {
      fail(fmt::format("weight_map {}: {} is not a file name in this folder",
                       unishard::quote(tensor), unishard::quote(file)));
    }
    if (!file.ends_with(".safetensors")) {
      fail(fmt::format("weight_map {}: {} is not a .safetensors file", unishard::quote(tensor),
                       unishard::quote(file)));
    }
    files.insert(file);
    model.weight_map.emplace(tensor, file);
  }
  model.files.assign(files.begin(), files.end());
  require_whole_index(storage, path, model.files);
  for (const std::string& file : model.files) {
    const EntryKind kind = storage.kind(folder / file);
    if (kind == EntryKind::File) continue;
    fail(fmt::format("the file {} that it names is {}", unishard::quote(file),
                     kind == EntryKind::Missing ? "not there" : "no regular file"));
  }
  return model;
}

ModelFolder join(const FileSet& shards) {
  ModelFolder model;
  for (const auto& [numbers, name] : shards.files) model.files.push_back(name);
  if (std::string doubt = shards.doubt(); !doubt.empty()) model.notes.push_back(std::move(doubt));
  return model;
}

}  // namespace

bool is_model_folder(Storage& storage, const Path& folder) {
  const Names names = safetensors_names(storage, folder);
  const bool has_usual_name =
      !names.indices.empty() ||
      std::ranges::any_of(kSingleFiles, [&](auto single) { return contains(names.files, single); });
  if (names.files.empty() || has_usual_name) return has_usual_name;
  const std::vector<FileSet> sets = find_sets(names.files);
  const bool has_shards =
      std::ranges::any_of(sets, [](const FileSet& set) { return set.kind == PartKind::Shards; });
  return has_shards || !has_torch_model(storage, folder);
}

ModelFolder read_model_folder(Storage& storage, const Path& folder) {
  const Names names = safetensors_names(storage, folder);
  for (const std::string_view single : kSingleFiles) {
    if (!contains(names.files, single)) continue;
    ModelFolder model;
    model.files.emplace_back(single);
    return model;
  }
  for (const std::string_view single : kSingleFiles) {
    const std::string index = fmt::format("{}{}", single, kIndexSuffix);
    if (contains(names.indices, index)) return read_index(storage, folder, index);
  }
  if (names.indices.size() == 1) return read_index(storage, folder, names.indices.front());
  if (names.indices.empty()) {
    if (auto shards = choose_shards(folder, names.files)) return join(*shards);
  }
  if (names.indices.empty() && names.files.size() == 1) {
    ModelFolder model;
    model.files = names.files;
    return model;
  }
  raise(ErrorCode::Unsupported,
        fmt::format("{} holds {} safetensors files and {} indices, and none is called {} or {}{}",
                    folder.string(), names.files.size(), names.indices.size(), kSingleFiles[0],
                    kSingleFiles[0], kIndexSuffix),
        "name one of the files instead");
}

}  // namespace unishard::converters::safetensors
