// A regular checkpoint holds the tensors as its ranks have them. The ranks of a tensor-parallel run
// are read one by one and put together.
#include "unishard/converters/cut_patterns.hpp"
#include "unishard/format/error.hpp"

#include "formats/deepspeed/layout.hpp"
#include "formats/deepspeed/merge_rules.hpp"
#include "formats/deepspeed/module_doubts.hpp"
#include "formats/deepspeed/rank_join.hpp"
#include "formats/deepspeed/rank_reader.hpp"
#include "formats/deepspeed/reader.hpp"
#include "formats/deepspeed/reader_pipeline.hpp"
#include "formats/deepspeed/unstarted_parameters.hpp"

#include <fmt/format.h>

namespace unishard::converters {
namespace deepspeed {
namespace {

class RegularReader {
 public:
  RegularReader(Storage& storage, const Path& folder, const Json& merge_rules)
      : storage_(storage),
        pool_(reading_pool(storage)),
        files_(find_files(storage, folder)),
        merge_rules_(merge_rules) {}

  std::unique_ptr<Source> read() {
    auto source = read_any();
    merge_rules_.check(source->catalog(), where());
    return source;
  }

  /// Returns nullopt unless the ranks are tensor-parallel and nothing says how they cut.
  std::optional<CutParts> read_silent_ranks() {
    const Path* const model = files_.model_ranks.at(0).first_model();
    if (model == nullptr) return std::nullopt;
    const TorchFile file(open_window(pool_, *model));
    const ParallelDegrees degrees = degrees_of(file);
    if (degrees.tensor <= 1 || degrees.pipeline > 1 || !files_.layers.empty() ||
        degrees.has_layer_files || has_experts(degrees) || tells_rules(file))
      return std::nullopt;
    check_ranks(degrees.tensor, "checkpoint_parallel_dimensions");
    Notes notes;
    return parts_of(read_ranks(degrees, notes));
  }

 private:
  std::unique_ptr<Source> read_any() {
    const Path* const model = files_.model_ranks.at(0).first_model();
    if (model == nullptr) {
      if (has_experts({}) || !files_.layers.empty()) raise_no_model();
      check_ranks(files_.model_ranks.rbegin()->first + 1, "the highest number");
      return read_only_rank();
    }
    const TorchFile file(open_window(pool_, *model));
    const ParallelDegrees degrees = degrees_of(file);
    const bool is_pipeline =
        !files_.layers.empty() || degrees.has_layer_files || degrees.pipeline > 1;
    if (has_experts(degrees)) return read_experts(file, degrees, is_pipeline);
    if (is_pipeline) return read_pipeline(storage_, pool_, files_, file, merge_rules_);
    check_ranks(degrees.tensor,
                degrees.is_told ? "checkpoint_parallel_dimensions" : "mp_world_size");
    if (degrees.tensor <= 1) return read_only_rank();
    return read_tensor_ranks(file, degrees);
  }

  static bool tells_rules(const TorchFile& file) {
    try {
      CutRules(present(file.root(), kCutPatterns), file.name());
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Unsupported) throw;
      return false;
    }
  }

  std::string where() const { return files_.folder.string(); }

  bool has_experts(const ParallelDegrees& degrees) const {
    return files_.old_expert || degrees.has_experts || degrees.has_auto_experts ||
           !files_.experts.empty();
  }

  [[noreturn]] void raise_no_model() const {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: mp_rank_00_model_states.pt is missing: nothing tells how the run was "
                      "parallel",
                      where()),
          kFindStages);
  }

  /// Reads the experts of DeepSpeed's own layers where nothing else was parallel beside the data.
  std::unique_ptr<Source> read_experts(const TorchFile& file, const ParallelDegrees& degrees,
                                       bool is_pipeline) {
    if (is_pipeline || degrees.tensor > 1 || degrees.has_auto_experts || files_.old_expert) {
      raise(
          ErrorCode::Unsupported,
          fmt::format("{}: {}: a mixture of experts {}, which is not read", where(), degrees.text(),
                      degrees.has_auto_experts ? "of AutoEP"
                      : files_.old_expert      ? "with files of DeepSpeed before 0.5"
                                               : "with pipeline or tensor parallelism"),
          kGatherExperts);
    }
    check_ranks(1, "checkpoint_parallel_dimensions");
    Notes notes;
    if (!files_.model_ranks.at(0).optimizers.empty()) lose_stage0_files(notes);
    const ExpertFiles experts = read_expert_files(pool_, files_, file, notes);
    RankInput input{.folder = files_.folder, .files = files_.model_ranks.at(0)};
    input.module = experts.files;
    input.experts = &experts;
    return finish(read_rank(storage_, pool_, input, notes), notes);
  }

  /// The optimizer files of expert ranks are from another save where the run had none.
  void lose_stage0_files(Notes& notes) const {
    for (const auto& [rank, path] : files_.expert_optimizers)
      notes.lose({Role::StaleFile, path.filename().string()});
  }

  std::unique_ptr<Source> finish(RankContent content, const Notes& notes) const {
    content.parts.notes = notes.lines();
    content.parts.losses = notes.losses();
    return make_pieced_source(std::move(content.parts), where());
  }

  /// Checks that the files are those of the tensor-parallel ranks 0 to `ranks` - 1.
  void check_ranks(std::uint64_t ranks, std::string_view said_by) const {
    std::vector<std::pair<std::uint32_t, Path>> found;
    for (const auto& [rank, files] : files_.model_ranks) {
      const bool has_files = files.model || !files.optimizers.empty() || !files.rank_models.empty();
      if (has_files) found.emplace_back(rank, files_.folder);
    }
    check_complete(files_.folder, found, ranks, "mp_rank", said_by);
  }

  std::unique_ptr<Source> read_only_rank() {
    Notes notes;
    lose_stage0_files(notes);
    const RankInput input{.folder = files_.folder, .files = files_.model_ranks.at(0)};
    return finish(read_rank(storage_, pool_, input, notes), notes);
  }

  std::vector<RankContent> read_ranks(const ParallelDegrees& degrees, Notes& notes) {
    if (storage_.kind(files_.folder / "offloaded_tensors") == EntryKind::Directory) {
      raise(ErrorCode::Unsupported,
            fmt::format("{}: {}: optimizer states that such a run swapped out to NVMe are not read",
                        where(), degrees.text()),
            kMergeRanks);
    }
    std::vector<RankContent> ranks;
    for (std::uint32_t rank = 0; rank < degrees.tensor; ++rank) {
      RankInput input{files_.folder, files_.model_ranks.at(rank), rank, false, false};
      if (!ranks.empty()) input.aliases = &ranks.front().aliases;
      ranks.push_back(read_rank(storage_, pool_, input, notes));
    }
    return ranks;
  }

  std::unique_ptr<Source> read_tensor_ranks(const TorchFile& first,
                                            const ParallelDegrees& degrees) {
    Notes notes;
    CutRules rules = merge_rules_.cut_rules(first, notes);
    return join_ranks(read_ranks(degrees, notes), rules, where(), notes);
  }

  Storage& storage_;
  std::shared_ptr<FilePool> pool_;
  TagFiles files_;
  MergeRules merge_rules_;
};

}  // namespace

std::optional<CutParts> open_silent_ranks(Storage& storage, const Path& path,
                                          const std::optional<std::string>& tag) {
  const Path folder = choose_tag(storage, path, tag, kRegular);
  if (is_universal_tag(storage, folder) || !is_regular_tag(storage, folder)) return std::nullopt;
  return RegularReader(storage, folder, nullptr).read_silent_ranks();
}

}  // namespace deepspeed

bool is_deepspeed(Storage& storage, const Path& path) {
  if (storage.kind(path) != EntryKind::Directory) return false;
  if (deepspeed::is_regular_tag(storage, path)) return true;
  if (!deepspeed::tags_of(storage, path, deepspeed::kRegular).empty()) return true;
  if (deepspeed::has_linked_tag(storage, path, deepspeed::kRegular)) return true;
  // A folder that has lost its tags gets its own message.
  return storage.kind(path / "latest") == EntryKind::File &&
         storage.kind(path / "zero_to_fp32.py") == EntryKind::File;
}

std::unique_ptr<Source> open_deepspeed(Storage& storage, const Path& path,
                                       const OpenOptions& options) {
  const Path folder = deepspeed::choose_tag(storage, path, options.tag, deepspeed::kRegular);
  if (deepspeed::is_universal_tag(storage, folder)) {
    OpenOptions of_folder = options;
    of_folder.tag.reset();
    return open_deepspeed_universal(storage, folder, of_folder);
  }
  if (!deepspeed::is_regular_tag(storage, folder)) {
    raise(ErrorCode::NotFound,
          fmt::format("{}: no *_model_states.pt of DeepSpeed is in it", folder.string()),
          "choose another checkpoint with --tag");
  }
  auto source = deepspeed::RegularReader(storage, folder, options.merge_rules).read();
  source->add_remarks(deepspeed::doubts_about_unstarted(source->catalog()));
  if (auto doubt = deepspeed::doubt_about_tag(folder, source->catalog()))
    source->add_remarks({*std::move(doubt)});
  return source;
}

}  // namespace unishard::converters
