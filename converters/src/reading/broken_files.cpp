#include "reading/broken_files.hpp"

#include "reading/completeness.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace unishard::converters {
namespace {

/// What is read as the model, the preferred first.
constexpr std::array<std::string_view, 8> kModelNames = {
    "model.safetensors",
    "diffusion_pytorch_model.safetensors",
    "model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "adapter_model.safetensors",
    "adapter_model.bin"};

/// Returns what is behind a name; empty for a file.
std::string_view words_if_broken(Storage& storage, const Path& folder, const Entry& entry) {
  if (entry.kind == EntryKind::File) return {};
  if (entry.kind == EntryKind::Directory) return "a folder";
  const EntryKind target = storage.kind(folder / entry.name);
  if (target == EntryKind::File) return {};
  if (target == EntryKind::Directory) return "a link to a folder";
  return target == EntryKind::Missing ? "a link to what is not there" : "no regular file";
}

std::optional<std::string> sentence_if_broken(Storage& storage, const Path& folder,
                                              const Entry& entry) {
  const std::string_view words = words_if_broken(storage, folder, entry);
  if (words.empty()) return std::nullopt;
  return fmt::format("{} would be the model, and is {}", (folder / entry.name).string(), words);
}

}  // namespace

std::optional<std::string> broken_model(Storage& storage, const Path& folder) {
  const std::vector<Entry> entries = storage.list(folder);
  for (const std::string_view name : kModelNames) {
    const auto entry = std::ranges::find(entries, name, &Entry::name);
    if (entry != entries.end()) return sentence_if_broken(storage, folder, *entry);
  }
  for (const Entry& entry : entries) {
    if (entry.kind != EntryKind::Other || !entry.name.ends_with(".safetensors")) continue;
    if (auto sentence = sentence_if_broken(storage, folder, entry)) return sentence;
  }
  return std::nullopt;
}

Losses broken_files(Storage& storage, const Path& folder, bool is_model_folder) {
  Losses losses;
  for (const Entry& entry : storage.list(folder)) {
    if (entry.kind != EntryKind::Other) continue;
    const std::string_view words = words_if_broken(storage, folder, entry);
    if (words.empty() || words == "a link to a folder") continue;
    const bool is_optimizer =
        is_model_folder && std::ranges::count(kOptimizerFiles, entry.name) > 0;
    losses.push_back({.role = is_optimizer ? Role::Optimizer : role_of_unread_file(entry.name),
                      .name = entry.name,
                      .why = std::string(words),
                      .is_broken = true});
  }
  return losses;
}

namespace {

std::string_view words_of(ErrorCode code) {
  if (code == ErrorCode::Io) return "cannot be read";
  return code == ErrorCode::Corrupt ? "damaged" : "not read";
}

}  // namespace

Loss damaged(Role role, std::string name, const Error& error) {
  return {.role = role,
          .name = std::move(name),
          .why = fmt::format("{} ({})", words_of(error.code()), error.what()),
          .is_broken = true,
          .is_unreadable = error.code() == ErrorCode::Io};
}

}  // namespace unishard::converters
