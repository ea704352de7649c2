#include "formats/deepspeed/shard_copies.hpp"

#include "unishard/format/error.hpp"

#include "containers/equal_elements.hpp"
#include "formats/deepspeed/layout.hpp"
#include "formats/deepspeed/pickle_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <span>

namespace unishard::converters::deepspeed {
namespace {

/// Returns whether both files are there and have the same bytes.
bool are_equal_files(Storage& storage, const Path& one, const Path& other) {
  try {
    if (storage.kind(other) != EntryKind::File) return false;
    const auto a = storage.open(one), b = storage.open(other);
    return a->size() == b->size() && equal_bytes(*a, 0, *b, 0, a->size());
  } catch (const Error&) {
    return false;  // nothing is known of a file that cannot be read
  }
}

std::vector<Path> folders_in(Storage& storage, const Path& folder) {
  std::vector<Path> folders;
  try {
    for (const Entry& entry : storage.list(folder)) {
      if (entry.kind == EntryKind::Directory) folders.push_back(folder / entry.name);
    }
  } catch (const Error&) {
    return {};
  }
  return folders;
}

}  // namespace

std::optional<std::string> ShardCopies::find_or_add(const std::string& file,
                                                    std::vector<torch::TensorView> views) {
  std::erase_if(views, [](const auto& view) { return !view.storage || view.elements() == 0; });
  constexpr std::uint64_t kSampled = 64;
  std::vector<std::byte> sample;
  for (const torch::TensorView& view : views)
    std::ranges::copy(sampled_bytes(view, 0, std::min(kSampled, view.elements())),
                      std::back_inserter(sample));
  const auto [begin, end] = by_sample_.equal_range(sample);
  for (auto at = begin; at != end; ++at) {
    const Held& held = at->second;
    if (std::ranges::equal(held.views, views, equal_elements) &&
        !std::ranges::all_of(views, has_one_value))
      return held.file;
  }
  by_sample_.emplace(std::move(sample), Held{file, std::move(views)});
  return std::nullopt;
}

void ShardCopies::add(const std::string& file, std::vector<torch::TensorView> views) {
  const auto other = find_or_add(file, std::move(views));
  if (!other) return;
  raise(ErrorCode::Corrupt,
        fmt::format("{} holds the same parts of parameters as {}: one is a copy of the other", file,
                    *other),
        "copy the file again from the node that wrote it, or use another checkpoint");
}

Path find_in_other_save(Storage& storage, const Path& optimizer, const Path& model) {
  const Path tag = std::filesystem::absolute(optimizer).lexically_normal().parent_path();
  const Path run = tag.parent_path();
  std::vector<Path> tags = folders_in(storage, run);
  // The Trainer keeps each save in a folder of its own: checkpoint-500/global_step500.
  if (match_numbers("checkpoint-#", run.filename().string())) {
    for (const Path& other : folders_in(storage, run.parent_path())) {
      if (other != run && match_numbers("checkpoint-#", other.filename().string()))
        std::ranges::move(folders_in(storage, other), std::back_inserter(tags));
    }
  }
  for (const Path& other : tags) {
    if (other == tag) continue;
    const Path their_optimizer = other / optimizer.filename(),
               their_model = other / model.filename();
    const bool is_optimizer = are_equal_files(storage, optimizer, their_optimizer);
    if (is_optimizer != are_equal_files(storage, model, their_model))
      return is_optimizer ? their_optimizer : their_model;
  }
  return {};
}

}  // namespace unishard::converters::deepspeed
