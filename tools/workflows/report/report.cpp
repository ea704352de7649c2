#include "workflows/report/report.hpp"

#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/manifest.hpp"

#include "workflows/native_folder.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace unishard::tools {
namespace {

/// A checkpoint to report.
struct Subject {
  std::string path;
  std::optional<std::string> tag;
};

/// Returns the other checkpoints of the folder that `first` lies in or is, the newest first.
std::vector<Subject> others_of(Storage& storage, const Subject& first, std::string chosen) {
  if (storage.kind(first.path) == EntryKind::File) return {};
  const Description listed = describe_tags(storage, first.path);
  if (chosen.empty()) chosen = listed.latest.value_or("");
  Path folder = absolute_folder(first.path);
  if (storage.kind(folder / kManifestFile) == EntryKind::File) folder = folder.parent_path();
  std::vector<Subject> others;
  for (const Description::Tag& entry : listed.tags) {
    if (entry.tag != chosen) others.push_back({(folder / entry.tag).string(), std::nullopt});
  }
  std::ranges::reverse(others);
  return others;
}

std::vector<StateBytes> bytes_by_state(const Catalog& catalog) {
  std::vector<StateBytes> out;
  std::map<std::tuple<std::string, DType, bool>, std::size_t> rows;
  for (const TensorInfo& tensor : catalog.tensors) {
    const auto [place, is_new] =
        rows.emplace(std::tuple(tensor.state, tensor.dtype, tensor.derived), out.size());
    if (is_new)
      out.push_back({.state = tensor.state, .dtype = tensor.dtype, .derived = tensor.derived});
    StateBytes& row = out[place->second];
    ++row.tensors;
    row.elements += tensor.elements();
    row.bytes += tensor.bytes();
  }
  return out;
}

/// Keeps what the overview of several checkpoints shows.
void drop_contents(Catalog& catalog) {
  Catalog kept;
  kept.step = catalog.step;
  kept.world_size = catalog.world_size;
  kept.stage = catalog.stage;
  kept.groups = std::move(catalog.groups);
  catalog = std::move(kept);
}

class ReportMaker {
 public:
  ReportMaker(Storage& storage, const ReportOptions& options)
      : storage_(storage), options_(options) {}

  Report run(const std::vector<std::string>& paths) {
    for (std::size_t i = 0; i < paths.size(); ++i)
      add({paths[i], i == 0 ? options_.tag : std::nullopt});
    if (options_.all_tags) {
      const std::string chosen = report_.checkpoints.front().description.tag;
      for (const Subject& other : others_of(storage_, wanted_.front(), chosen)) add_other(other);
    }
    compare();
    order_history();
    return std::move(report_);
  }

 private:
  void add(const Subject& wanted) {
    wanted_.push_back(wanted);
    ReportedCheckpoint& added = report_.checkpoints.emplace_back();
    VerifyOptions verifying;
    verifying.tag = wanted.tag;
    verifying.deep = options_.deep;
    verifying.transfer = options_.transfer;
    added.verified = verify(storage_, wanted.path, verifying);
    try {
      added.description = describe(storage_, wanted.path, {.tag = wanted.tag},
                                   {.layout = report_.described.empty(),
                                    .stats = options_.stats,
                                    .identity = false,
                                    .transfer = options_.transfer});
    } catch (const Error& error) {
      if (!blames_files(error.code()) || added.verified.is_clean() || is_gone(wanted)) throw;
      added.problem = error.what();
      added.description = describe_manifest(wanted);
    }
    added.is_described = !added.description.format.empty();
    if (added.is_described) summarise(added);
  }

  /// Adds a checkpoint that the user did not name. One that is not supported is part of the report;
  /// one that a training has removed meanwhile is not.
  void add_other(const Subject& wanted) {
    try {
      add(wanted);
    } catch (const Error& error) {
      if (!blames_files(error.code())) throw;
      if (is_gone(wanted)) {
        wanted_.pop_back();
        report_.checkpoints.pop_back();
        return;
      }
      ReportedCheckpoint& added = report_.checkpoints.back();
      added.problem = error.what();
      added.is_supported = error.code() != ErrorCode::Unsupported;
      added.description.path = wanted.path;
    }
  }

  /// Describes a damaged checkpoint by its manifest, which has all tables but those of the shards.
  Description describe_manifest(const Subject& wanted) const {
    Description out;
    out.path = wanted.path;
    out.tag = wanted.tag.value_or("");
    try {
      const Path folder = resolve_checkpoint(storage_, wanted.path, wanted.tag);
      Manifest manifest = read_manifest(storage_, folder);
      out.path = folder;
      out.tag = manifest.tag;
      out.saved_unix_seconds = manifest.saved_unix_seconds;
      out.catalog = std::move(manifest.catalog);
      out.identity = identity(out.catalog);
      out.format = "native";
    } catch (const Error& error) {
      if (!blames_files(error.code())) throw;
    }
    return out;
  }

  bool is_gone(const Subject& wanted) const {
    const Path path = wanted.path;
    return storage_.kind(wanted.tag ? path / *wanted.tag : path) == EntryKind::Missing;
  }

  void summarise(ReportedCheckpoint& added) {
    Catalog& catalog = added.description.catalog;
    added.states = bytes_by_state(catalog);
    added.tensors = catalog.tensors.size();
    added.parameters = catalog.parameter_count();
    added.bytes = catalog.stored_bytes();
    added.has_stats = std::ranges::any_of(catalog.tensors, [](const TensorInfo& tensor) {
      return tensor.stats && tensor.stats->count > 0;
    });
    report_.described.push_back(report_.checkpoints.size() - 1);
    if (added.description.format == "native") wanted_.back().tag = added.description.tag;
    if (!report_.history) {
      report_.history.emplace(catalog);
      report_.outliers = find_outliers(catalog);
      report_.owned = ownership(added.description);
      added.description.owners.clear();
    }
    report_.history->add(catalog);
    if (report_.described.size() > 1) drop_contents(catalog);
  }

  std::unique_ptr<converters::Source> open(std::size_t checkpoint) const {
    return converters::open_source(storage_, wanted_[checkpoint].path, wanted_[checkpoint].tag);
  }

  void compare() {
    if (report_.described.size() < 2) return;
    const auto is_damaged = [&](std::size_t index) {
      return !report_.checkpoints[index].problem.empty();
    };
    const std::size_t first = report_.described[0], second = report_.described[1];
    if (is_damaged(first) || is_damaged(second)) return;
    try {
      const auto a = open(first);
      const auto b = open(second);
      const ReportedCheckpoint& described = report_.checkpoints[first];
      if (a->catalog().tensors.size() != described.tensors)
        raise(ErrorCode::Mismatch,
              described.description.path.string() + " was replaced while it was read",
              "call again");
      report_.comparison = compare_digests(*a, *b, options_.deep, options_.transfer);
    } catch (const Error&) {
      if (!is_gone(wanted_[first]) && !is_gone(wanted_[second])) throw;
    }
  }

  void order_history() {
    if (report_.described.size() < 2) report_.history.reset();
    if (!report_.history) return;
    report_.history_order.resize(report_.described.size());
    std::iota(report_.history_order.begin(), report_.history_order.end(), std::size_t{0});
    std::ranges::stable_sort(report_.history_order, {}, [&](std::size_t index) {
      return report_.checkpoints[report_.described[index]].description.catalog.step;
    });
  }

  Storage& storage_;
  const ReportOptions& options_;
  std::vector<Subject> wanted_;
  Report report_;
};

}  // namespace

bool Report::is_clean() const {
  return std::ranges::all_of(checkpoints, [](const ReportedCheckpoint& checkpoint) {
    return (checkpoint.problem.empty() || !checkpoint.is_supported) &&
           checkpoint.verified.is_clean();
  });
}

Report make_report(Storage& storage, const std::vector<std::string>& paths,
                   const ReportOptions& options) {
  return ReportMaker(storage, options).run(paths);
}

}  // namespace unishard::tools
