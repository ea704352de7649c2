#pragma once
// Contents of DeepSpeed's files that the regular and the universal checkpoint share: the model file
// and the optimizer's state.
#include "unishard/converters/sink.hpp"

#include "containers/archive_draft.hpp"
#include "formats/deepspeed/expert_files.hpp"
#include "formats/deepspeed/writer_layout.hpp"
#include "formats/deepspeed/writer_model.hpp"
#include "formats/deepspeed/writer_run.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::deepspeed_sink {

using torch::ArchiveDraft;
using torch::FlatPiece;

/// All archives of one output.
struct OutputDraft {
  torch::OutputPlan plan;
  std::vector<torch::ArchivePlan> archives;

  /// Begins the next archive. Pre: the one before it was finished and appended to `archives`.
  ArchiveDraft next(const Catalog& catalog) { return {plan, catalog, archives.size()}; }
};

class StageLayers;

/// The part of a run that is parallel beside ZeRO to which a set of files belongs.
struct ModelRank {
  std::uint32_t stages = 1, tensor_ranks = 1;
  std::uint32_t stage = 0, tensor_rank = 0;
  /// The layers of a pipeline, whose module is in a file for each of them; else null.
  const StageLayers* layers = nullptr;

  /// Returns what is after "mp_rank_".
  std::uint32_t number() const { return stage * tensor_ranks + tensor_rank; }
};

/// Everything about the run that is saved.
/// Lifetime: `catalog` must outlive this object.
struct SavedRun {
  /// `saved` has the tensors of `of_rank`, and its data-parallel ranks as world size.
  explicit SavedRun(const Catalog& saved, const ModelRank& of_rank = {});

  const Catalog& catalog;
  ModelRank rank;
  SinkModel model;
  RunFacts facts;
  std::vector<std::string> notes;

  bool is_16_bit() const { return model.precision != DType::Float32; }
  /// Returns true when, at stage 0, the optimizer's 16-bit wrapper has one vector per group.
  bool is_fused() const { return is_16_bit() && model.groups.front().is_fused(); }
};

/// Differences between the model files of the stages.
struct ModelFile {
  std::uint32_t rank = 0;
  bool partitioned = false;  ///< stage 3: the module's parameters are placeholders
  bool has_shapes = false;   ///< write param_shapes and related keys; else None
  /// Parameters of every flat vector, in order.
  std::vector<std::vector<std::size_t>> shapes;
  std::function<void(ArchiveDraft&)> optimizer;  ///< writes the optimizer; empty: None
  /// The layers whose experts have files of their own; null: all weights are in this file.
  const std::vector<deepspeed::ExpertLayer>* expert_layers = nullptr;
};
void write_model_file(ArchiveDraft& file, const SavedRun& run, const ModelFile& what);

/// Writes the keys dp_world_size, ... into an open dict.
void write_world(torch::PickleWriter& pickle, const SavedRun& run);

/// Throws Unsupported, naming the tensor, when a state does not have its parameter's shape.
void check_shape(const Catalog& catalog, const SinkParameter& parameter, TensorIndex tensor);

/// Writes {"state": {i: {step, exp_avg, …}}, "param_groups": […]} for these vectors.
void write_optimizer_state(ArchiveDraft& file, const SavedRun& run,
                           const std::vector<FlatVector>& vectors);
/// Writes the masters of a vector as a tensor of `shape`: its own shape, or one without the
/// padding.
void write_master(ArchiveDraft& file, const SavedRun& run, const FlatVector& vector,
                  const Shape& shape);

/// Plans the files of an ordinary checkpoint, those of one rank of a run that is parallel beside
/// ZeRO. The notes are not set.
/// Throws: as the sink of the format does.
OutputDraft draft_regular(const SavedRun& run);

/// Sets the draft's notes, about what it leaves out and about states that some parameters of a
/// group lack (with `fills`, these are written as zeros), and its list of omitted tensors.
/// Pre: everything is placed.
void add_notes(const SavedRun& run, OutputDraft& draft, bool fills);
/// Returns whether parameters have the names that DeepSpeed's MoE layers give to experts.
bool has_experts(const SavedRun& run);

/// Returns the sink of a finished draft: the archives in `<folder>/<tag>`, then
/// `latest_file`, which names the tag, unless it is empty. `side_files` are written into `folder`
/// unless it has files of these names.
std::unique_ptr<Sink> make_folder_sink(Storage& storage, const Path& folder, const std::string& tag,
                                       std::string_view latest_file, Catalog catalog,
                                       OutputDraft draft, const WorkSplit& share,
                                       SideFiles side_files);

}  // namespace unishard::converters::deepspeed_sink
