#include "unishard/converters/damaged_files.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"
#include "unishard/format/manifest.hpp"

#include "containers/pickle.hpp"
#include "containers/torch_file.hpp"
#include "containers/zip_reader.hpp"
#include "core/python_json.hpp"
#include "formats/trainer/folder.hpp"
#include "reading/broken_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <unordered_set>

namespace unishard::converters {
namespace {

/// Of larger files only the directory and the pickle are read.
constexpr std::uint64_t kCheckedBytes = std::uint64_t{64} << 20;

struct Pattern {
  std::string_view start, end;
};
constexpr std::array<Pattern, 2> kSchedules = {{{"scheduler", ".bin"}, {"scheduler.pt", ""}}};
constexpr std::array<Pattern, 7> kOthers = {{{"scaler.pt", ""},
                                             {"training_args.bin", ""},
                                             {"rng_state", ".pth"},
                                             {"random_states_", ".pkl"},
                                             {"sampler", ".bin"},
                                             {"dl_state_dict", ".bin"},
                                             {"custom_checkpoint_", ".pkl"}}};

/// Each holds one object.
constexpr std::array<std::string_view, 12> kJson = {"config.json",
                                                    "adapter_config.json",
                                                    "generation_config.json",
                                                    "tokenizer.json",
                                                    "tokenizer_config.json",
                                                    "special_tokens_map.json",
                                                    "added_tokens.json",
                                                    "vocab.json",
                                                    "chat_template.json",
                                                    "preprocessor_config.json",
                                                    "processor_config.json",
                                                    "video_preprocessor_config.json"};

bool matches_any(std::span<const Pattern> patterns, std::string_view name) {
  return std::ranges::any_of(patterns, [&](const Pattern& pattern) {
    return pattern.end.empty() ? name == pattern.start
                               : name.starts_with(pattern.start) && name.ends_with(pattern.end);
  });
}

std::string read_bytes(const torch::Window& window, std::uint64_t limit) {
  std::string bytes(std::min(window.size, limit), '\0');
  window.read(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

void require_checksums(const torch::Window& window) {
  const torch::ZipReader zip(window);
  for (const torch::ZipEntry& entry : zip.entries()) zip.content(entry, kCheckedBytes);
}

void require_object(const torch::Window& window) {
  if (window.size > kCheckedBytes) return;
  const std::string text = read_bytes(window, kCheckedBytes);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (!SortedJson::accept(text) && !SortedJson::accept(strict_json(text)))
    raise(ErrorCode::Corrupt, fmt::format("{}: it is not valid JSON", window.name()));
  if (text[first] != '{')
    raise(ErrorCode::Corrupt, fmt::format("{}: it is JSON, and no object", window.name()));
}

constexpr std::uint64_t kHeadBytes = 32;

/// Whether a file of a name that anybody may give begins as no file of torch or pickle does, and
/// with something.
bool is_of_others(std::string_view name, const torch::Window& window) {
  const std::string head = read_bytes(window, kHeadBytes);
  const bool may_be_other = name.ends_with(".bin") || name.ends_with(".pkl");
  return may_be_other && !head.starts_with("PK") && !head.starts_with('\x80') &&
         head.find_first_not_of('\0') != std::string::npos;
}

/// Throws: Corrupt when the file is damaged.
void require_whole(const torch::Window& window, const Path& path) {
  if (path.extension() == ".json") return require_object(window);
  const std::string head = read_bytes(window, kHeadBytes);
  const bool is_small = window.size <= kCheckedBytes;
  if (head.starts_with('\x80') && !torch::is_torch_head(head)) {
    if (is_small) torch::Pickle::parse(read_bytes(window, kCheckedBytes), path.string());
    return;
  }
  const torch::TorchFile file(window);
  if (is_small && head.starts_with("PK")) require_checksums(window);
}

/// Whether a conversion of a checkpoint that lies among files of other programs takes it along.
bool is_taken_along(std::string_view name) {
  constexpr std::array<std::string_view, 4> kSuffixes = {".pt", ".pth", ".bin", ".pkl"};
  return std::ranges::any_of(kSuffixes,
                             [&](std::string_view suffix) { return name.ends_with(suffix); });
}

class Check {
 public:
  Check(Storage& storage, std::string_view format, const Losses& beside)
      : storage_(storage),
        reads_schedules_(format == "trainer" || format == "accelerate" || format == "dcp"),
        takes_all_(format == "native"),
        takes_named_(format == "dcp") {
    for (const Loss& loss : beside) {
      if (loss.role == Role::SideFile || loss.role == Role::OtherModel) named_.insert(loss.name);
    }
  }

  /// `prefix` goes before the names.
  void add(const Path& folder, const std::string& prefix) {
    for (const Entry& entry : storage_.list(folder)) {
      const bool is_schedule = matches_any(kSchedules, entry.name);
      if (!is_schedule && !is_checked(entry.name)) continue;
      try {
        const Path path = folder / entry.name;
        if (storage_.kind(path) != EntryKind::File) continue;
        const torch::Window window = torch::whole_file(storage_, path);
        const bool is_known = is_schedule || matches_any(kOthers, entry.name);
        if (is_known || !is_of_others(entry.name, window)) require_whole(window, path);
      } catch (const Error& error) {
        const bool is_here = error.code() == ErrorCode::Corrupt || error.code() == ErrorCode::Io;
        if (!is_here) continue;  // another container, or just removed
        const Role role = is_schedule && reads_schedules_ ? Role::Setting : Role::SideFile;
        losses.push_back(damaged(role, prefix + entry.name, error));
      }
    }
  }

  Losses losses;

 private:
  bool is_checked(const std::string& name) const {
    if (std::ranges::count(kJson, name) > 0 || matches_any(kOthers, name)) return true;
    const bool is_named = takes_named_ && named_.contains(name);
    return (takes_all_ || is_named) && is_taken_along(name);
  }

  Storage& storage_;
  const bool reads_schedules_, takes_all_, takes_named_;
  std::unordered_set<std::string> named_;
};

bool has_file(Storage& storage, const Path& path) { return storage.kind(path) == EntryKind::File; }

}  // namespace

Losses damaged_files(Storage& storage, const Path& folder, std::string_view format,
                     const Source& source) {
  constexpr const char* kFolderOfVerl = "huggingface";
  Check check(storage, format, source.losses());
  check.add(folder, {});
  if (format == "dcp" && storage.kind(folder / kFolderOfVerl) == EntryKind::Directory)
    check.add(folder / kFolderOfVerl, fmt::format("{}/", kFolderOfVerl));
  const Path& model = source.model_folder();
  if (!model.empty()) check.add(model, fmt::format("{}/", model.filename().string()));
  std::ranges::sort(check.losses, {}, &Loss::name);
  return std::move(check.losses);
}

Losses damaged_beside_tag(Storage& storage, const Path& tag_folder, const Catalog& catalog) {
  Check check(storage, "native", {});
  check.add(tag_folder, {});
  const Path run = folder_of_plug_in(storage, tag_folder, catalog);
  if (run != tag_folder) check.add(run, run.string() + "/");
  return std::move(check.losses);
}

Path folder_of_plug_in(Storage& storage, const Path& tag_folder, const Catalog& catalog) {
  Path run = std::filesystem::absolute(tag_folder / "").lexically_normal().parent_path();
  run = run.parent_path();
  if (has_file(storage, run / trainer::kTrainerState)) return run;
  if (!run.filename().string().starts_with("unishard")) return tag_folder;
  const Path around = run.parent_path();
  const Json& client = catalog.client_state;
  const Json files = client.is_object() ? client.value("accelerate", Json()) : Json();
  if (files.is_object() && files.contains("folder") && files["folder"].is_string()) {
    const std::string name = files["folder"];  // of a file: it may hold anything
    if (name.starts_with("accelerate-") && name.find('/') == std::string::npos)
      return around / name;
  }
  return has_file(storage, around / "random_states_0.pkl") ? around : tag_folder;
}

}  // namespace unishard::converters
