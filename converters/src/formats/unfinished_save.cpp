#include "formats/unfinished_save.hpp"

#include "unishard/format/checkpoint_folder.hpp"
#include "unishard/format/error.hpp"

#include "formats/trainer/folder.hpp"
#include "reading/folder_names.hpp"

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace unishard::converters {
namespace {

/// Files that end a save: that of the Trainer, and that of accelerate's save_state().
constexpr std::array<std::string_view, 2> kLastFiles = {trainer::kTrainerState,
                                                        "random_states_0.pkl"};

bool has_file(Storage& storage, const Path& path) { return storage.kind(path) == EntryKind::File; }

/// Returns the name of another checkpoint beside `folder` that has the file.
std::optional<std::string> complete_neighbour(Storage& storage, const Path& folder,
                                              std::string_view file) {
  for (const Entry& entry : storage.list(folder.parent_path())) {
    if (entry.kind == EntryKind::Directory && checkpoint_number(entry.name) &&
        entry.name != folder.filename() &&
        has_file(storage, folder.parent_path() / entry.name / file))
      return entry.name;
  }
  return std::nullopt;
}

/// DeepSpeed's folder below a checkpoint of the Trainer.
std::optional<Loss> folder_of_latest(Storage& storage, const Path& folder) {
  std::optional<std::string> tag;
  try {
    tag = read_latest(storage, folder);
  } catch (const Error&) {
    return {};  // not a tag
  }
  if (!tag) return {};
  const EntryKind kind = storage.kind(folder / *tag);
  const bool is_empty = kind == EntryKind::Directory && storage.list(folder / *tag).empty();
  if (kind != EntryKind::Missing && !is_empty) return {};
  Loss loss{Role::Optimizer, *tag,
            "`latest` names this folder, and there is nothing in it: masters and optimizer are "
            "gone"};
  loss.is_broken = true;
  return loss;
}

}  // namespace

std::optional<Loss> unfinished_save(Storage& storage, const Path& folder) {
  if (!checkpoint_number(folder.filename().string()) || !folder.has_parent_path()) return {};
  for (const std::string_view file : kLastFiles) {
    if (has_file(storage, folder / file)) return {};
  }
  Loss loss{Role::Optimizer, {}, {}};
  loss.is_broken = true;
  for (const std::string_view file : kLastFiles) {
    const auto neighbour = complete_neighbour(storage, folder, file);
    if (!neighbour) continue;
    loss.name = file;
    loss.why = fmt::format(
        "it is the last file of a save, {} has it, and it is not here: the save did not finish, "
        "and the training state is not whole",
        *neighbour);
    return loss;
  }
  if (!has_file(storage, folder / "training_args.bin")) return {};
  loss.name = kLastFiles[0];
  loss.why =
      "it is the last file that the Trainer writes of a save, and it is not here: the save did not "
      "finish, and the training state is not whole";
  return loss;
}

Losses missing_training_state(Storage& storage, const Path& folder) {
  Losses losses;
  if (auto loss = folder_of_latest(storage, folder)) losses.push_back(std::move(*loss));
  if (auto loss = unfinished_save(storage, folder)) losses.push_back(std::move(*loss));
  return losses;
}

}  // namespace unishard::converters
