#include "formats/damaged_files.hpp"

#include "unishard/format/error.hpp"

#include "containers/pickle.hpp"
#include "containers/torch_file.hpp"
#include "containers/zip_reader.hpp"
#include "reading/broken_files.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <string>

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

/// Throws: Corrupt when the file is damaged.
void require_whole(Storage& storage, const Path& path) {
  constexpr std::uint64_t kHeadBytes = 32;
  const torch::Window window = torch::whole_file(storage, path);
  const std::string head = read_bytes(window, kHeadBytes);
  const bool is_small = window.size <= kCheckedBytes;
  if (head.starts_with('\x80') && !torch::is_torch_head(head)) {
    if (is_small) torch::Pickle::parse(read_bytes(window, kCheckedBytes), path.string());
    return;
  }
  const torch::TorchFile file(window);
  if (is_small && head.starts_with("PK")) require_checksums(window);
}

}  // namespace

Losses damaged_files(Storage& storage, const Path& folder, std::string_view format) {
  Losses losses;
  for (const Entry& entry : storage.list(folder)) {
    const bool is_schedule = matches_any(kSchedules, entry.name);
    const bool is_known = is_schedule || matches_any(kOthers, entry.name);
    if (!is_known || storage.kind(folder / entry.name) != EntryKind::File) continue;
    try {
      require_whole(storage, folder / entry.name);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Corrupt) continue;  // another container, or not readable
      const bool is_read =
          is_schedule && (format == "trainer" || format == "accelerate" || format == "dcp");
      losses.push_back(damaged(is_read ? Role::Setting : Role::SideFile, entry.name, error));
    }
  }
  std::ranges::sort(losses, {}, &Loss::name);
  return losses;
}

}  // namespace unishard::converters
