#include "workflows/side_files.hpp"

#include "unishard/format/checkpoint_folder.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"
#include "unishard/format/manifest.hpp"
#include "unishard/format/memory.hpp"
#include "unishard/format/staging_names.hpp"
#include "unishard/format/storage.hpp"

#include "support/descriptor.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

namespace unishard::tools {
namespace {

constexpr std::uint64_t kBytesPerFile = std::uint64_t{64} << 20;
constexpr std::array<std::string_view, 22> kNames = {"config.json",
                                                     "adapter_config.json",
                                                     "generation_config.json",
                                                     "tokenizer.json",
                                                     "tokenizer_config.json",
                                                     "tokenizer.model",
                                                     "spiece.model",
                                                     "sentencepiece.bpe.model",
                                                     "source.spm",
                                                     "target.spm",
                                                     "bpe.codes",
                                                     "special_tokens_map.json",
                                                     "added_tokens.json",
                                                     "normalizer.json",
                                                     "vocab.json",
                                                     "vocab.txt",
                                                     "merges.txt",
                                                     "chat_template.jinja",
                                                     "chat_template.json",
                                                     "preprocessor_config.json",
                                                     "video_preprocessor_config.json",
                                                     "processor_config.json"};

using Pattern = std::pair<std::string_view, std::string_view>;  ///< prefix and suffix
/// The source of models outside transformers, which is copied and never run.
constexpr std::array<Pattern, 6> kSourcePatterns = {{{"modeling_", ".py"},
                                                     {"configuration_", ".py"},
                                                     {"tokenization_", ".py"},
                                                     {"processing_", ".py"},
                                                     {"image_processing_", ".py"},
                                                     {"feature_extraction_", ".py"}}};

constexpr std::array<std::string_view, 5> kTrainerNames = {
    kTrainerState, "training_args.bin", "scheduler.pt", "scaler.pt", "README.md"};
/// The states of random generators, by which a folder of accelerate is known, as by its optimizer.
constexpr Pattern kAccelerateState = {"random_states_", ".pkl"};
/// A Trainer keeps no source of other programs in its folders.
constexpr std::array<Pattern, 7> kTrainerPatterns = {{kAccelerateState,
                                                      {"rng_state", ".pth"},
                                                      {"scheduler", ".bin"},
                                                      {"sampler", ".bin"},
                                                      {"dl_state_dict", ".bin"},
                                                      {"custom_checkpoint_", ".pkl"},
                                                      {"", ".py"}}};

/// Files that the reader of a training folder reads, or names when it does not.
constexpr std::array<Pattern, 6> kReadPatterns = {{{"", ".safetensors"},
                                                   {"pytorch_model", ".bin"},
                                                   {"adapter_model", ".bin"},
                                                   {"optimizer", ".bin"},
                                                   {"optimizer.pt", ""},
                                                   {"", ".index.json"}}};

bool matches(const Pattern& pattern, std::string_view name) {
  return name.starts_with(pattern.first) && name.ends_with(pattern.second);
}

bool matches_any(std::span<const Pattern> patterns, std::string_view name) {
  return std::ranges::any_of(patterns,
                             [&](const Pattern& pattern) { return matches(pattern, name); });
}

bool goes_with_model(std::string_view name) {
  return std::ranges::count(kNames, name) > 0 || matches_any(kSourcePatterns, name);
}

bool goes_with_run(std::string_view name) {
  return goes_with_model(name) || std::ranges::count(kTrainerNames, name) > 0 ||
         matches_any(kTrainerPatterns, name);
}

bool is_training_folder(const std::vector<Entry>& entries) {
  return std::ranges::any_of(entries, [](const Entry& entry) {
    return entry.name == kTrainerState || entry.name == "optimizer.pt" ||
           entry.name == "optimizer.bin" || matches(kAccelerateState, entry.name);
  });
}

/// Returns the real path of the open file: without links, and safe against being replaced.
Path real_path(const Descriptor& file) {
  std::error_code code;
  return std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", file.get()), code);
}

bool is_below(const Path& path, const Path& folder) {
  const auto [rest, end] = std::ranges::mismatch(folder, path);
  return rest == folder.end() && !folder.empty();
}

/// Returns "models--ORG--NAME/blobs" when `folder` is "models--ORG--NAME/snapshots/REVISION".
std::optional<Path> blobs_of(const Path& folder) {
  const Path snapshots = folder.parent_path(), repository = snapshots.parent_path();
  if (snapshots.filename() != "snapshots" ||
      !repository.filename().string().starts_with("models--"))
    return std::nullopt;
  return repository / "blobs";
}

/// Reads files one by one; `left_out` receives the ones that are not taken, and why.
class Collector {
 public:
  Collector(const Descriptor& folder, std::vector<std::string>& left_out)
      : folder_(folder), real_folder_(real_path(folder)), left_out_(left_out) {}

  void take(const std::string& name) {
    // O_NONBLOCK: opening a FIFO must not wait.
    const Descriptor file(
        ::openat(folder_.get(), name.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (file.get() < 0) {
      const int error = errno;
      struct stat status {};
      const bool is_there =
          ::fstatat(folder_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
      if (is_there) leave_out(name, std::generic_category().message(error));
      return;
    }
    if (const std::string problem = problem_of(file); !problem.empty())
      return leave_out(name, problem);
    std::string text = read(file, name);
    // Python writes NaN into the log of a Trainer, which strict JSON lacks.
    if (name.ends_with(".json") && name != kTrainerState) {
      if (const std::string problem = json_problem(text); !problem.empty())
        return leave_out(name, problem);
    }
    bytes_ += text.size();
    files.emplace_back(name, std::move(text));
  }

  converters::SideFiles files;

 private:
  void leave_out(const std::string& name, std::string_view why) {
    left_out_.push_back(fmt::format("{}: {}", name, why));
  }

  /// Returns why the text is no JSON that everybody reads alike; empty when it is.
  static std::string json_problem(const std::string& text) {
    if (!SortedJson::accept(text)) return "it is not valid JSON";
    try {
      parse_sorted_json(text, "it");
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }

  /// Returns why the open file is not taken; empty when it is.
  std::string problem_of(const Descriptor& file) const {
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) return std::generic_category().message(errno);
    if (!S_ISREG(status.st_mode)) return "it is not a regular file";
    const Path place = real_path(file);
    const auto blobs = blobs_of(real_folder_);
    if (!is_below(place, real_folder_) && !(blobs && is_below(place, *blobs)))
      return "a link that leaves the folder";
    const auto size = static_cast<std::uint64_t>(status.st_size);
    // All of them are in memory until they are written.
    const std::uint64_t all = description_limit() / 2;
    const std::uint64_t most = std::min(kBytesPerFile, all - std::min(all, bytes_));
    if (size > most) return fmt::format("{} bytes, and at most {} are copied", size, most);
    return {};
  }

  static std::string read(const Descriptor& file, const std::string& name) {
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) raise_errno("reading", name, errno);
    std::string text(static_cast<std::size_t>(status.st_size), '\0');
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t count = ::read(file.get(), text.data() + at, text.size() - at);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) raise_errno("reading", name, errno);
      if (count == 0)
        raise(ErrorCode::Corrupt, fmt::format("{}: truncated while it was read", name));
      at += static_cast<std::size_t>(count);
    }
    return text;
  }

  const Descriptor& folder_;
  const Path real_folder_;
  std::vector<std::string>& left_out_;
  std::uint64_t bytes_ = 0;
};

/// Whether UniShard or torch gives the name to a file of a checkpoint.
bool is_taken_name(std::string_view name) {
  return name == kManifestFile || name == kLatestFile || name.starts_with("shard-") ||
         name.starts_with('.') || name.ends_with(".distcp") || is_leftover(name) ||
         is_lock_name(name);
}

converters::SideFiles collect(const Descriptor& folder, const std::vector<Entry>& entries,
                              bool (*is_wanted)(std::string_view),
                              std::vector<std::string>& notes) {
  std::vector<std::string> names;
  for (const Entry& entry : entries) {
    if (is_wanted(entry.name)) names.push_back(entry.name);
  }
  std::ranges::sort(names);
  Collector collector(folder, notes);
  for (const std::string& name : names) collector.take(name);
  return std::move(collector.files);
}

}  // namespace

converters::SideFiles find_side_files(const Path& model, std::vector<std::string>& notes) {
  const Descriptor folder(::open(model.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) return {};
  return collect(folder, posix_storage().list(model), goes_with_model, notes);
}

std::optional<std::string> read_side_file(const Path& model, const std::string& name) {
  const Descriptor folder(::open(model.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) return std::nullopt;
  std::vector<std::string> left_out;
  Collector collector(folder, left_out);
  collector.take(name);
  if (collector.files.empty()) return std::nullopt;
  return std::move(collector.files.front().second);
}

converters::SideFiles find_trainer_files(const Path& run, std::vector<std::string>& notes) {
  const Descriptor folder(::open(run.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) return {};
  const std::vector<Entry> entries = posix_storage().list(run);
  if (!is_training_folder(entries)) return {};
  return collect(folder, entries, goes_with_run, notes);
}

converters::SideFiles find_named_files(const Path& folder_path, std::vector<std::string> names,
                                       std::vector<std::string>& notes) {
  const Descriptor folder(::open(folder_path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) return {};
  std::erase_if(names, [&](const std::string& name) {
    return is_taken_name(name) || posix_storage().kind(folder_path / name) == EntryKind::Directory;
  });
  std::ranges::sort(names);
  Collector collector(folder, notes);
  for (const std::string& name : names) collector.take(name);
  return std::move(collector.files);
}

std::vector<std::string> find_unknown_files(const Path& run) {
  std::vector<std::string> names;
  if (posix_storage().kind(run) != EntryKind::Directory) return names;
  for (const Entry& entry : posix_storage().list(run)) {
    if (entry.kind != EntryKind::Directory && !goes_with_run(entry.name) &&
        !matches_any(kReadPatterns, entry.name))
      names.push_back(entry.name);
  }
  return names;
}

std::vector<std::string> names_of(const converters::SideFiles& files) {
  std::vector<std::string> names;
  for (const auto& [name, content] : files) names.push_back(name);
  return names;
}

}  // namespace unishard::tools
