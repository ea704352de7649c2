#include "workflows/verify/verify_tag.hpp"

#include "unishard/converters/damaged_files.hpp"
#include "unishard/format/crc64.hpp"
#include "unishard/format/error.hpp"

#include "workflows/native_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_set>

namespace unishard::tools {
namespace {

/// JSON has no infinity: the manifest stores a sum beyond the range of double as the largest
/// double.
bool describes(const Stats& manifest, const Stats& shards) {
  const double most = std::numeric_limits<double>::max();
  return manifest.count == shards.count && manifest.nan_count == shards.nan_count &&
         manifest.inf_count == shards.inf_count && manifest.min == shards.min &&
         manifest.max == shards.max && manifest.sum_squares == std::min(shards.sum_squares, most);
}

class TagCheck {
 public:
  TagCheck(Storage& storage, const Path& folder, const VerifyOptions& options, Team& team,
           VerifyReport& report)
      : storage_(storage), folder_(folder), options_(options), team_(team), report_(report) {}

  void run() {
    checked_.folder = folder_;
    checked_.format = "native";
    checked_.tag = absolute_folder(folder_).filename().string();
    if (read_manifest()) {
      open_shards();
      check_stray_entries();
      check_files_beside();
      check_coverage();
      if (options_.deep) check_payload();
    }
    report_.checked.push_back(std::move(checked_));
  }

 private:
  Finding& add(std::string code, Path path, std::string message, std::string hint = {}) {
    return report_.findings.emplace_back(Finding{.code = std::move(code),
                                                 .path = std::move(path),
                                                 .message = std::move(message),
                                                 .hint = std::move(hint),
                                                 .bytes = {},
                                                 .lost = {}});
  }

  bool read_manifest() {
    const Path path = folder_ / kManifestFile;
    try {
      if (storage_.kind(path) == EntryKind::Missing) {
        add("manifest-missing", path,
            "there are shards and no manifest: the save was never completed, or the file was lost",
            "restore the file, or use another checkpoint");
        return false;
      }
      manifest_ = unishard::read_manifest(storage_, folder_);
    } catch (const Error& error) {
      if (!blames_files(error.code())) throw;
      add("manifest-unreadable", path, error.what(), error.hint());
      return false;
    }
    if (manifest_.tag != checked_.tag) {
      report_.notes.push_back(fmt::format("{}: saved under the tag {}; the folder was renamed",
                                          folder_.string(), quote(manifest_.tag)));
    }
    checked_.step = manifest_.catalog.step;
    checked_.identity = identity(manifest_.catalog);
    checked_.shards = manifest_.shards.size();
    checked_.tensors = manifest_.catalog.tensors.size();
    return true;
  }

  void open_shards() {
    for (const ShardEntry& entry : manifest_.shards) {
      const Path path = folder_ / entry.file;
      for (const DataSetEntry& set : entry.data_sets) checked_.payload_bytes += set.padded_bytes();
      auto& shard = shards_.emplace_back();
      try {
        shard = std::make_unique<ShardReader>(storage_, path, entry, manifest_.save_id,
                                              manifest_.catalog, manifest_.chunk_bytes);
      } catch (const Error& error) {
        if (!blames_files(error.code())) throw;
        const bool is_missing = storage_.kind(path) == EntryKind::Missing;
        add(is_missing ? "shard-missing" : "shard-damaged", path, error.what(), error.hint());
        bad_shards_.push_back(report_.findings.size() - 1);
      }
    }
  }

  void check_stray_entries() {
    std::unordered_set<std::string> known = {std::string(kManifestFile)};
    for (const ShardEntry& entry : manifest_.shards) {
      known.insert(entry.file);
      for (const BaseFile& base : entry.bases) known.insert(base.file);
    }
    if (storage_.kind(folder_) == EntryKind::Missing) return;  // its shards are findings
    for (const Entry& entry : storage_.list(folder_)) {
      if (known.contains(entry.name)) continue;
      if (is_own_file(entry.name)) {
        add("stray-file", folder_ / entry.name, "it is not a part of the checkpoint",
            "move it out of the folder");
      } else {
        report_.notes.push_back(fmt::format(
            "{} was not written by UniShard; no checksum covers it, and prune keeps its checkpoint",
            (folder_ / entry.name).string()));
      }
    }
  }

  /// Files of a Trainer, of accelerate and of a model, in the tag's folder or in that of the run.
  void check_files_beside() {
    if (!team_.is_first() || storage_.kind(folder_) == EntryKind::Missing) return;
    for (const converters::Loss& loss :
         converters::damaged_beside_tag(storage_, folder_, manifest_.catalog))
      add(loss.is_unreadable ? kNotRead : "side-file-damaged", folder_ / loss.name, loss.why,
          loss.is_unreadable ? "check the owner and permissions of the file"
                             : "bring the file back, or remove it");
  }

  /// A fragment in shards_[shard], which owns its row.
  struct Row {
    FragmentRow fragment;
    std::size_t shard;
  };

  /// Checks that exactly one readable shard holds each element of each tensor, and that the digests
  /// combine to the manifest's. Elements in no shard are lost.
  void check_coverage() {
    std::vector<std::vector<Row>> rows(manifest_.catalog.tensors.size());
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      for (std::size_t row = 0; shards_[i] && row < shards_[i]->rows().size(); ++row) {
        const FragmentRow fragment = shards_[i]->fragment(row);
        rows[fragment.row->tensor].push_back({fragment, i});
      }
    }
    std::vector<LostRange> lost;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::ranges::sort(rows[i], {}, [](const Row& row) { return row.fragment.row->range; });
      check_tensor(manifest_.catalog.tensors[i], rows[i], lost);
    }
    report_lost(std::move(lost));
  }

  void check_tensor(const TensorInfo& tensor, const std::vector<Row>& rows,
                    std::vector<LostRange>& lost) {
    std::vector<FragmentRow> fragments;
    for (const Row& row : rows) fragments.push_back(row.fragment);
    const bool has_boxes =
        std::ranges::any_of(fragments, [](const FragmentRow& row) { return !row.box.empty(); });
    if (!(has_boxes ? is_whole_of_boxes(tensor, rows, lost) : is_whole(tensor, rows, lost))) return;
    const RowTotal total = total_of(tensor, fragments);
    if (tensor.crc64 != total.crc64) {
      add("digest-differs", folder_ / kManifestFile,
          fmt::format("{}: the shards' digests combine to {}, the manifest says {}", tensor.label(),
                      hex64(total.crc64), tensor.crc64 ? hex64(*tensor.crc64) : "nothing"));
    }
    if (tensor.stats && !describes(*tensor.stats, total.stats)) {
      add("statistics-differ", folder_ / kManifestFile,
          fmt::format("{}: the manifest's NaN and Inf counts, minimum, maximum or sum of squares "
                      "are not those of the shards",
                      tensor.label()),
          "the elements are sound; the manifest was written or changed by something else");
    }
  }

  /// Reports every range that is missing or stored twice. Returns true when there is none.
  bool is_whole(const TensorInfo& tensor, const std::vector<Row>& rows,
                std::vector<LostRange>& lost) {
    std::uint64_t end = 0;
    bool whole = true;
    for (const auto& [fragment, shard] : rows) {
      const ElementRange range = fragment.row->range;
      if (range.begin > end) {
        lost.emplace_back(tensor.label(), ElementRange{end, range.begin});
        whole = false;
      } else if (range.begin < end) {
        add("stored-twice", shards_[shard]->path(),
            fmt::format("{}: elements {} to {} are also in another shard", tensor.label(),
                        range.begin, std::min(end, range.end)));
        whole = false;
      }
      end = std::max(end, range.end);
    }
    if (end < tensor.elements()) {
      lost.emplace_back(tensor.label(), ElementRange{end, tensor.elements()});
      whole = false;
    }
    return whole;
  }

  /// Does the same for a tensor with boxes, whose wrong elements lie anywhere between the first and
  /// the last.
  bool is_whole_of_boxes(const TensorInfo& tensor, const std::vector<Row>& rows,
                         std::vector<LostRange>& lost) {
    std::vector<HeldPart> parts;
    std::uint64_t held = 0;
    for (const Row& row : rows) {
      parts.push_back(row.fragment.held());
      held += row.fragment.row->elements;
    }
    std::optional<CoverageFault> fault;
    try {
      fault = find_coverage_fault(tensor.shape, parts, tensor.label());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Corrupt) throw;
      add("stored-twice", folder_ / kManifestFile, error.what());
      return false;
    }
    if (!fault) return true;
    if (fault->is_missing && held < tensor.elements()) {
      lost.emplace_back(tensor.label(), fault->range, tensor.elements() - held);
    } else {
      add("stored-twice", folder_ / kManifestFile,
          fmt::format("{}: the boxes overlap: the first wrong element is {}, the last one {}",
                      tensor.label(), fault->range.begin, fault->range.end - 1));
    }
    return false;
  }

  void report_lost(std::vector<LostRange> lost) {
    if (lost.empty()) return;
    if (bad_shards_.size() == 1) {
      report_.findings[bad_shards_.front()].lost = std::move(lost);
      return;
    }
    const std::string why =
        bad_shards_.empty()
            ? "no shard holds them, though all shards are readable"
            : fmt::format("they were in the {} shards that cannot be read", bad_shards_.size());
    add("elements-lost", folder_, fmt::format("parts of tensors are lost: {}", why)).lost =
        std::move(lost);
  }

  void check_payload() {
    verify_payload(manifest_, shards_, options_.transfer, team_, checked_, report_);
    const auto& tensors = manifest_.catalog.tensors;
    const bool has_derived = std::any_of(tensors.begin(), tensors.end(),
                                         [](const TensorInfo& tensor) { return tensor.derived; });
    if (has_derived) verify_derived(storage_, folder_, options_.transfer, team_, checked_, report_);
  }

  Storage& storage_;
  const Path& folder_;
  const VerifyOptions& options_;
  Team& team_;
  VerifyReport& report_;
  CheckedTag checked_;
  Manifest manifest_;
  std::vector<std::unique_ptr<ShardReader>> shards_;
  std::vector<std::size_t> bad_shards_;  ///< indices of their findings
};

}  // namespace

void verify_tag(Storage& storage, const Path& folder, const VerifyOptions& options, Team& team,
                VerifyReport& report) {
  TagCheck(storage, folder, options, team, report).run();
}

}  // namespace unishard::tools
