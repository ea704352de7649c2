#pragma once
// The contents of DeepSpeed's files, from the parts that the regular and the universal checkpoint
// share: the model file and the state of the optimizer.
#include "unishard/converters/sink.hpp"

#include "formats/deepspeed/archive_draft.hpp"
#include "formats/deepspeed/writer_layout.hpp"
#include "formats/deepspeed/writer_model.hpp"
#include "formats/deepspeed/writer_run.hpp"

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::deepspeed_sink {

/// Everything about the run that is saved.
struct SavedRun {
  explicit SavedRun(const Catalog& saved);

  const Catalog& catalog;
  SinkModel model;
  RunFacts facts;
  std::vector<std::string> notes;

  bool is_16_bit() const { return model.precision != DType::Float32; }
  /// At stage 0, whether the 16-bit wrapper of the optimizer has one vector a group.
  bool is_fused() const { return is_16_bit() && model.groups.front().is_fused(); }
};

/// What differs between the model files of the stages.
struct ModelFile {
  std::uint32_t rank = 0;
  bool partitioned = false;  ///< stage 3: the module's parameters are placeholders
  bool has_shapes = false;   ///< param_shapes and what belongs to it; else None
  std::vector<std::vector<std::size_t>> shapes;  ///< parameters of every flat vector, in order
  std::function<void(ArchiveDraft&)> optimizer;  ///< writes the value; without: None
};
void write_model_file(ArchiveDraft& file, const SavedRun& run, const ModelFile& what);

/// The keys dp_world_size …, in an open dict.
void write_world(torch::PickleWriter& pickle, const SavedRun& run);

/// Throws Unsupported naming the tensor when a state is not shaped as its parameter.
void check_shape(const Catalog& catalog, const SinkParameter& parameter, TensorIndex tensor);

/// {"state": {i: {step, exp_avg, …}}, "param_groups": […]} for these vectors.
void write_optimizer_state(ArchiveDraft& file, const SavedRun& run,
                           const std::vector<FlatVector>& vectors);
/// The masters of a vector, as a tensor of `shape` (its own, or its padding cut off).
void write_master(ArchiveDraft& file, const SavedRun& run, const FlatVector& vector,
                  const Shape& shape);

/// What the draft leaves out, and states that some parameters of a group lack: `fills` says that
/// those are written as zeros.
std::vector<std::string> all_notes(const SavedRun& run, const OutputDraft& draft, bool fills);

/// The sink of a finished draft: the archives in `<folder>/<tag>`, then `latest_file` naming the
/// tag.
std::unique_ptr<Sink> make_folder_sink(Storage& storage, const Path& folder, const std::string& tag,
                                       const std::string& latest_file, Catalog catalog,
                                       OutputDraft draft, const WorkSplit& share);

}  // namespace unishard::converters::deepspeed_sink
