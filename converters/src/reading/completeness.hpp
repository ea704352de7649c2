#pragma once
// Which files belong together, as their names say. One table knows the names that programs give to
// the files of one checkpoint; the readers and the messages about folders ask it.
// Thread safety: pure functions, except for what they list.
#include "unishard/converters/loss.hpp"
#include "unishard/format/storage.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters {

/// What the files of a set hold.
enum class PartKind : std::uint8_t {
  Shards,  ///< tensors, each of them whole and in one file
  Cuts,    ///< parts of tensors: one file for each rank of a tensor-parallel or sharded model
};

/// What its name says about one of several files or folders.
struct PartName {
  std::string set;                     ///< the name with "*" for each number; the same for all
  std::vector<std::uint64_t> numbers;  ///< one, or one for each degree of parallelism
  std::optional<std::uint64_t> count;  ///< how many there are; nullopt where the name does not say
  PartKind kind = PartKind::Shards;
  std::string_view writer;  ///< the programs that give such names
};

/// Takes apart the name of a file; nullopt for a name that says nothing of others. A name that
/// counts one file alone ("model-00001-of-00001.safetensors") is one of a set of one.
std::optional<PartName> parse_part_name(std::string_view name);

/// Files or folders whose names differ in the numbers only.
struct FileSet {
  std::string name;  ///< PartName::set
  PartKind kind = PartKind::Shards;
  std::string_view writer;
  std::optional<std::uint64_t> count;
  std::map<std::vector<std::uint64_t>, std::string> files;  ///< names, by their numbers
  /// Two names with the same numbers (`model-1-of-00002`, `model-00001-of-00002`); empty: none.
  std::string doubled;

  /// Returns how many files the set should have: their count, or the largest number where they do
  /// not say it.
  std::uint64_t expected() const;
  /// Returns a sentence that says what is missing or doubled; empty when the set is whole.
  std::string problem() const;
  /// Returns a sentence about a set whose names alone say that its files belong together; empty
  /// where the only file counts itself alone.
  std::string doubt() const;
};

/// Returns the sets among the names, by PartName::set. Names that say nothing are in none.
std::vector<FileSet> find_sets(const std::vector<std::string>& names);

/// What to do about an index that does not describe the files beside it.
inline constexpr std::string_view kOtherIndexHint =
    "take the index that was saved with these files, or remove it: they are then read by their "
    "numbers";

/// Requires that the files `names`, of which the index lists tensors, are all of their set.
/// Throws: Corrupt, naming the index and a file that it does not know, or that is missing.
void require_whole_index(Storage& storage, const Path& index,
                         const std::vector<std::string>& names);

/// Returns what a folder holds, but for AppleDouble files: macOS keeps attributes of "x" in "._x"
/// where a disk or an archive has no place for them.
std::vector<Entry> list_content(Storage& storage, const Path& folder);

/// Returns the names of the regular files in a folder that end in one of the suffixes, also those
/// that links lead to.
std::vector<std::string> files_with_suffix(Storage& storage, const Path& folder,
                                           std::span<const std::string_view> suffixes);

/// Returns the role of a file beside a model that is not read, by its name: OtherModel for one that
/// may hold weights, SideFile for others (the Trainer's arguments, states of random generators).
Role role_of_unread_file(std::string_view name);

/// Returns a loss for each file in a folder that may hold weights, except for those that `read`
/// names.
Losses unread_models(Storage& storage, const Path& folder, const std::vector<std::string>& read);

/// Returns the numbered shards of the model that a folder without an index holds: of the only set,
/// or of the set with a usual name (`model-00001-of-00002`) beside others. Returns nullopt when no
/// name is that of a shard.
/// Throws: Corrupt, saying what is missing, when the set is not whole; Unsupported, naming the
/// sets, when the folder does not tell which one is meant.
std::optional<FileSet> choose_shards(const Path& folder, const std::vector<std::string>& names);

/// Refuses a shard that has only what other shards have.
/// Throws: Corrupt, naming it.
[[noreturn]] void raise_copy_of_others(const Path& shard);

/// Refuses a file of a rank that was written under another's name.
/// Throws: Corrupt, naming both.
[[noreturn]] void raise_written_as(const Path& file, const std::string& written);

/// Checks that a file of a rank has the numbers with which it was written: torch names the folder
/// in its archive, `archive_name`, after the file.
/// Throws: Corrupt, naming both, when the two names differ in numbers only.
void require_written_name(const Path& file, const std::string& archive_name);

/// Returns what one file is a part of, as its name and the names beside it say: "file 2 of the 3
/// named like model-*-of-00003.safetensors". Returns nullopt when nothing says so.
std::optional<std::string> describe_part(Storage& storage, const Path& file);
/// Returns the files that may be missing beside one that has the name of the first of several and
/// is alone: `model.rank0.bin`. nullopt for other names.
std::optional<Loss> doubt_about_lone(const Path& file);

}  // namespace unishard::converters
