#include "workflows/output_run.hpp"

#include "unishard/format/checkpoint_folder.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/manifest.hpp"
#include "unishard/format/staging_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string_view>

namespace unishard::tools {
namespace {

using Parameters = std::map<std::string_view, const Shape*>;

/// Buffers do not count: formats of models store them as weights.
Parameters parameters(const Catalog& catalog, const std::set<std::string_view>& buffers) {
  Parameters found;
  for (const TensorInfo& tensor : catalog.tensors) {
    const bool is_parameter = tensor.state == state::kFp32 || tensor.state == state::kWeights;
    if (is_parameter && !buffers.contains(tensor.fqn)) found.emplace(tensor.fqn, &tensor.shape);
  }
  return found;
}

void add_buffers(const Catalog& catalog, std::set<std::string_view>& buffers) {
  for (const TensorInfo& tensor : catalog.tensors) {
    if (tensor.state == state::kBuffer) buffers.insert(tensor.fqn);
  }
}

bool has_optimizer(const Catalog& catalog) {
  if (catalog.groups.is_array() && !catalog.groups.empty()) return true;
  return std::ranges::any_of(catalog.tensors, [](const TensorInfo& tensor) {
    return tensor.state != state::kFp32 && tensor.state != state::kWeights &&
           tensor.state != state::kBuffer;
  });
}

/// Returns why the result cannot be a checkpoint of the run; empty when it can.
std::string difference(const Catalog& run, const Catalog& result) {
  std::set<std::string_view> buffers;
  add_buffers(run, buffers);
  add_buffers(result, buffers);
  const Parameters theirs = parameters(run, buffers), ours = parameters(result, buffers);
  for (const auto& [fqn, shape] : theirs) {
    const auto found = ours.find(fqn);
    if (found == ours.end()) return fmt::format("the result has no {}", quote(fqn));
    if (*found->second != *shape) return fmt::format("{} has another shape", quote(fqn));
  }
  for (const auto& [fqn, shape] : ours) {
    if (!theirs.contains(fqn)) return fmt::format("the result has {} in addition", quote(fqn));
  }
  if (has_optimizer(run) && !has_optimizer(result)) return "the result has no optimizer";
  return {};
}

/// The checkpoint from which a folder's run goes on.
struct Newest {
  std::string tag;
  Catalog catalog;
};

std::optional<Newest> newest_native(Storage& storage, const Path& folder) {
  std::optional<Newest> newest;
  const auto read = [&](const Path& tag_folder) {
    newest = {tag_folder.filename().string(), read_manifest(storage, tag_folder).catalog};
  };
  try {
    read_stable(storage, folder, std::nullopt, read);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::NotFound) throw;
    const std::vector<TagEntry> tags = list_tags(storage, folder);  // `latest` may name none
    if (!tags.empty()) read(folder / tags.back().tag);
  }
  return newest;
}

std::optional<Newest> newest_foreign(Storage& storage, const converters::Output& output) {
  const bool is_universal = output.format == "deepspeed-universal";
  const Path latest = output.path / (is_universal ? "latest_universal" : kLatestFile);
  if (storage.kind(latest) != EntryKind::File) return std::nullopt;
  std::string tag = read_text(storage, latest, limits::kTagBytes + 1);
  tag.erase(tag.find_last_not_of(" \t\r\n") + 1);
  const bool is_for_sink = is_unishard_checkpoint(storage, output.path / tag);  // which refuses it
  if (is_for_sink || storage.kind(output.path / tag) == EntryKind::Missing) return std::nullopt;
  return Newest{tag, converters::open_source_as(storage, output.format, output.path)->catalog()};
}

constexpr const char* kHint =
    "write to another folder, or add the result beside what is there with --fresh: `latest` then "
    "names it; nothing was written";

std::optional<Newest> find_newest(Storage& storage, const converters::Output& output) {
  try {
    if (storage.kind(output.path) != EntryKind::Directory) return std::nullopt;
    return output.format == "native" ? newest_native(storage, output.path)
                                     : newest_foreign(storage, output);
  } catch (const Error& error) {
    raise(
        ErrorCode::AlreadyExists,
        fmt::format("{} contains a checkpoint that cannot be read, so it is not known whether the "
                    "result belongs to its run: {}",
                    output.path.string(), error.what()),
        kHint);
  }
}

}  // namespace

LatestDecision decide_latest(Storage& storage, const converters::Output& output,
                             const Catalog& target, bool may_be_fresh) {
  if (may_be_fresh || storage.kind(output.path / output.tag) != EntryKind::Missing) return {};
  const std::optional<Newest> newest = find_newest(storage, output);
  if (!newest) return {};
  const std::string reason = difference(newest->catalog, target);
  if (!reason.empty()) {
    raise(ErrorCode::AlreadyExists,
          fmt::format("{} contains the checkpoints of another run than the result is of: compared "
                      "with {}, {}",
                      output.path.string(), quote(newest->tag), reason),
          kHint);
  }
  if (target.step >= newest->catalog.step) return {};
  return {.moves = false,
          .remark = fmt::format(
              "`latest` in {} still names {} of step {}: the result is of step {}",
              output.path.string(), quote(newest->tag), newest->catalog.step, target.step)};
}

OutputLock lock_run(Storage& storage, const converters::Output& output) {
  constexpr std::chrono::seconds kPatience{60};  // others publish meanwhile
  return {storage, output.path / lock_name("conversion"), output.path, kPatience};
}

}  // namespace unishard::tools
