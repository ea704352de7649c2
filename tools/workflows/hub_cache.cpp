#include "workflows/hub_cache.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

namespace unishard::tools {
namespace {

constexpr std::string_view kScheme = "hf://";
constexpr std::string_view kModels = "models--";
constexpr std::uint64_t kReferenceBytes = 256;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

Path cache_folder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string folder = variable(name); !folder.empty()) return folder;
  }
  if (const std::string home = variable("HF_HOME"); !home.empty()) return Path(home) / "hub";
  const std::string caches = variable("XDG_CACHE_HOME");
  const Path root = caches.empty() ? Path(variable("HOME")) / ".cache" : Path(caches);
  return root / "huggingface" / "hub";
}

/// A name of the hub, such as "org/name@main".
struct HubName {
  std::string model;     ///< "org/name" or "name"
  std::string revision;  ///< empty: main

  std::string folder() const {
    std::string out(kModels);
    for (const char letter : model) out += letter == '/' ? "--" : std::string(1, letter);
    return out;
  }
};

/// Returns true for "a" and "a/b" of letters, digits, '.', '_' and '-', where no part is dots only.
bool is_model_name(std::string_view text) {
  std::size_t parts = 0;
  while (true) {
    const std::string_view part = text.substr(0, text.find('/'));
    const auto is_allowed = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '.' || c == '_' || c == '-';
    };
    if (part.find_first_not_of('.') == part.npos || !std::ranges::all_of(part, is_allowed))
      return false;
    if (++parts > 2) return false;
    if (part.size() == text.size()) return true;
    text.remove_prefix(part.size() + 1);
  }
}

std::optional<HubName> parse_hub_name(std::string_view text) {
  if (text.starts_with(kScheme)) text.remove_prefix(kScheme.size());
  const std::size_t at = std::min(text.find('@'), text.size());
  if (!is_model_name(text.substr(0, at))) return std::nullopt;
  return HubName{std::string(text.substr(0, at)),
                 std::string(at < text.size() ? text.substr(at + 1) : "")};
}

/// Returns true for the name of a folder, not for a path.
bool is_plain_name(std::string_view text) {
  return text.find('/') == text.npos && text.find_first_not_of('.') != text.npos;
}

[[noreturn]] void refuse_revision(const Path& model, const std::string& problem) {
  raise(ErrorCode::NotFound, fmt::format("{}: {}", model.string(), problem),
        "download it, for example with `hf download`, or name a folder in snapshots");
}

/// Returns the snapshot of `revision`, a commit or a name in refs; of main when it is empty.
std::string find_snapshot(Storage& storage, const Path& model, const std::string& revision) {
  const Path snapshots = model / "snapshots";
  if (is_plain_name(revision) && storage.kind(snapshots / revision) == EntryKind::Directory)
    return (snapshots / revision).string();
  const Path name = Path(revision.empty() ? "main" : revision).lexically_normal();
  const bool is_inside = !name.is_absolute() && *name.begin() != "..";
  const Path reference = model / "refs" / name;
  if (is_inside && storage.kind(reference) == EntryKind::File) {
    std::string commit = read_text(storage, reference, kReferenceBytes);
    commit.erase(commit.find_last_not_of(" \r\n") + 1);
    if (!is_plain_name(commit))
      raise(ErrorCode::Corrupt,
            fmt::format("{} names no folder of snapshots: {}", reference.string(), quote(commit)),
            "download the model again");
    if (storage.kind(snapshots / commit) == EntryKind::Directory)
      return (snapshots / commit).string();
    refuse_revision(model, fmt::format("snapshot {} is missing", commit));
  }
  if (!revision.empty()) refuse_revision(model, fmt::format("no revision {}", quote(revision)));
  const std::vector<Entry> all = storage.list(snapshots);
  if (all.size() != 1)
    refuse_revision(model, fmt::format("no revision main, and {} snapshots", all.size()));
  return (snapshots / all.front().name).string();
}

bool is_cached_model(Storage& storage, const Path& folder) {
  return folder.filename().string().starts_with(kModels) &&
         storage.kind(folder / "snapshots") == EntryKind::Directory;
}

}  // namespace

std::string find_in_hub_cache(Storage& storage, const std::string& name) {
  const bool is_asked_for = name.starts_with(kScheme);
  const Path path = name.ends_with('/') ? Path(name).parent_path() : Path(name);
  if (!is_asked_for && storage.kind(path) != EntryKind::Missing) {
    return is_cached_model(storage, path) ? find_snapshot(storage, path, "") : name;
  }
  const auto wanted = parse_hub_name(name);
  if (wanted) {
    const Path folder = cache_folder() / wanted->folder();
    if (is_cached_model(storage, folder)) return find_snapshot(storage, folder, wanted->revision);
  }
  const bool looks_like_one = wanted && wanted->model.find('/') != std::string::npos &&
                              storage.kind(path.parent_path()) == EntryKind::Missing;
  if (!is_asked_for && !looks_like_one) return name;
  const std::string cache = cache_folder().string();
  if (is_asked_for)
    raise(ErrorCode::NotFound, fmt::format("{} is not in the cache {}", name, cache),
          "download it, for example with `hf download`; UniShard uses no network");
  raise(ErrorCode::NotFound,
        fmt::format("{} does not exist, and no model of that name is in the cache {}", name, cache),
        "check the path, or download the model, for example with `hf download`");
}

}  // namespace unishard::tools
