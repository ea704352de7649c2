#include "formats/deepspeed/writer_files.hpp"

#include "unishard/converters/cut_patterns.hpp"
#include "unishard/format/checkpoint_folder.hpp"
#include "unishard/format/commit.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/manifest.hpp"

#include "core/partial_output.hpp"
#include "formats/deepspeed/cpu_states.hpp"
#include "formats/deepspeed/expert_files.hpp"
#include "formats/deepspeed/model_keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <unordered_set>

namespace unishard::converters::deepspeed_sink {
namespace {

using Kind = ModuleEntry::Kind;

void write_module_entry(ArchiveDraft& file, const ModuleEntry& entry, bool partitioned) {
  if (partitioned && entry.kind != Kind::Buffer) return file.placeholder(entry.dtype);
  file.tensor(entry.tensor, entry.dtype);
}

void write_module(ArchiveDraft& file, const SavedRun& run, const ModelFile& what) {
  const auto is_elsewhere = [&](const std::string& fqn) {
    return what.expert_layers != nullptr && deepspeed::split_expert(fqn).has_value();
  };
  file.pickle.str("module");
  if (run.rank.layers != nullptr) {
    file.pickle.none();
    return;
  }
  file.pickle.begin_ordered_dict();
  for (const ModuleEntry& entry : run.model.module) {
    if (is_elsewhere(entry.fqn)) continue;
    file.pickle.str(entry.fqn);
    write_module_entry(file, entry, what.partitioned);
  }
  for (const auto& [name, entry] : run.model.aliases) {
    if (is_elsewhere(name) || run.model.is_unsaved(run.model.module[entry])) continue;
    file.pickle.str(name);
    write_module_entry(file, run.model.module[entry], what.partitioned);
  }
  file.pickle.end_dict();
}

void write_buffer_names(ArchiveDraft& file, const SavedRun& run) {
  file.pickle.str("buffer_names");
  file.pickle.begin_list();
  for (const ModuleEntry& entry : run.model.module) {
    if (entry.kind == Kind::Buffer) file.pickle.str(entry.fqn);
  }
  for (const auto& [name, entry] : run.model.aliases) {
    if (run.model.module[entry].kind == Kind::Buffer) file.pickle.str(name);
  }
  file.pickle.end_list();
}

void write_param_shapes(ArchiveDraft& file, const SavedRun& run, const ModelFile& what) {
  file.pickle.str("param_shapes");
  file.pickle.begin_list();
  for (const auto& parameters : what.shapes) {
    file.pickle.begin_ordered_dict();
    for (const std::size_t parameter : parameters) {
      file.pickle.str(run.model.parameters[parameter].fqn);
      file.pickle.size(run.model.parameters[parameter].shape);
    }
    file.pickle.end_dict();
  }
  file.pickle.end_list();
}

/// Writes a frozen parameter: all of it, or at stage 3 the rank's piece.
void write_fragment(ArchiveDraft& file, const SavedRun& run, const ModelFile& what,
                    const ModuleEntry& entry) {
  if (!what.partitioned) return file.tensor(entry.tensor, entry.dtype);
  const std::uint64_t elements = run.catalog.tensors[entry.tensor].elements();
  const std::uint32_t world_size = run.catalog.world_size;
  const ElementRange range = own_range(elements, what.rank, world_size);
  std::vector<FlatPiece> pieces;
  if (!range.empty()) pieces.push_back({entry.tensor, range, 0});
  file.flat(entry.dtype, own_length(elements, world_size), pieces);
}

/// Writes None when there are none: DeepSpeed looks up every frozen parameter of its model in a
/// dict, and a run that saves without its frozen parameters has some. Those of a pipeline are in
/// the files of its layers alone.
template <class WriteValue>
void write_frozen(ArchiveDraft& file, const SavedRun& run, std::string_view key,
                  const WriteValue& write_value) {
  file.pickle.str(key);
  if (!run.model.has_frozen() || run.rank.layers != nullptr) return file.pickle.none();
  file.pickle.begin_ordered_dict();
  for (const ModuleEntry& entry : run.model.module) {
    if (entry.kind != Kind::Frozen) continue;
    file.pickle.str(entry.fqn);
    write_value(entry);
  }
  file.pickle.end_dict();
}

void write_shapes(ArchiveDraft& file, const SavedRun& run, const ModelFile& what) {
  if (!what.has_shapes) {
    for (const char* key :
         {"param_shapes", "frozen_param_shapes", "shared_params", "frozen_param_fragments"}) {
      file.pickle.str(key);
      file.pickle.none();
    }
    return;
  }
  write_param_shapes(file, run, what);
  write_frozen(file, run, "frozen_param_shapes", [&](const ModuleEntry& entry) {
    file.pickle.size(run.catalog.tensors[entry.tensor].shape);
  });
  file.pickle.str("shared_params");
  file.pickle.begin_dict();
  for (const auto& [name, entry] : run.model.aliases) {
    const ModuleEntry& first = run.model.module[entry];
    if (first.kind == Kind::Buffer) continue;
    const bool is_turned = run.model.is_unsaved(first);
    file.pickle.str(is_turned ? first.fqn : name);
    file.pickle.str(is_turned ? name : first.fqn);
  }
  file.pickle.end_dict();
  write_frozen(file, run, "frozen_param_fragments",
               [&](const ModuleEntry& entry) { write_fragment(file, run, what, entry); });
}

void write_expert_counts(torch::PickleWriter& pickle,
                         const std::vector<deepspeed::ExpertLayer>& layers) {
  Json counts = Json::array();
  for (const deepspeed::ExpertLayer& layer : layers) counts.push_back(layer.experts);
  pickle.str("num_experts");
  write_plain(pickle, counts);
  pickle.str("ds_autoep_layers");
  pickle.none();
}

/// Returns the tensor that holds a parameter's part of a state; nullopt when the part is zero.
std::optional<TensorIndex> source_of(const SinkParameter& parameter, std::string_view name) {
  return name == state::kFp32 ? parameter.master : parameter.state(name);
}

/// Returns one type for the whole group, so that every rank writes the same one.
DType group_dtype(const SavedRun& run, std::size_t group, std::string_view name) {
  std::vector<TensorIndex> tensors;
  for (const std::size_t parameter : run.model.groups[group].parameters) {
    if (const auto found = source_of(run.model.parameters[parameter], name)) {
      tensors.push_back(*found);
    }
  }
  return flat_dtype(run.catalog, tensors);
}

std::vector<FlatPiece> pieces_of(const SavedRun& run, const std::vector<Slot>& slots,
                                 std::string_view name) {
  std::vector<FlatPiece> pieces;
  for (const Slot& slot : slots) {
    const SinkParameter& parameter = run.model.parameters[slot.parameter];
    const auto tensor = source_of(parameter, name);
    if (!tensor || slot.range.empty()) continue;
    check_shape(run.catalog, parameter, *tensor);
    pieces.push_back({*tensor, slot.range, slot.at});
  }
  return pieces;
}

/// Returns the tensors that hold a number of a vector: of a flat one, those of all parameters.
std::vector<TensorIndex> scalars_of(const SavedRun& run, const FlatVector& vector,
                                    std::string_view name) {
  std::vector<TensorIndex> tensors;
  const auto take = [&](std::size_t parameter) {
    if (const auto tensor = run.model.parameters[parameter].state(name)) tensors.push_back(*tensor);
  };
  if (vector.is_whole) {
    take(vector.slots.front().parameter);
  } else {
    std::ranges::for_each(run.model.groups[vector.group].parameters, take);
  }
  return tensors;
}

void write_scalars(ArchiveDraft& file, const SavedRun& run, const FlatVector& vector) {
  for (const std::string& name : run.model.groups[vector.group].scalars) {
    const std::vector<TensorIndex> tensors = scalars_of(run, vector, name);
    if (tensors.empty()) continue;
    file.pickle.str(name);
    file.number(tensors);
  }
}

/// Returns the states of a vector: all states of its group; for a single parameter, its own.
void write_states(ArchiveDraft& file, const SavedRun& run, const FlatVector& vector) {
  const SinkGroup& group = run.model.groups[vector.group];
  file.pickle.begin_dict();
  if (!group.is_muon()) {
    file.pickle.str("step");
    file.pickle.integer(run.catalog.step);  // torch's optimizers make a tensor of it themselves
  }
  for (const std::string& name : group.states) {
    if (vector.is_whole) {
      const auto tensor = run.model.parameters[vector.slots.front().parameter].state(name);
      if (!tensor) continue;
      file.pickle.str(name);
      file.tensor(*tensor, run.catalog.tensors[*tensor].dtype);
    } else {
      const bool is_whole = vector.state_length.has_value();
      file.pickle.str(run.catalog.stage == 0
                          ? name
                          : deepspeed::cpu_state_name(group.settings, group.states, name));
      file.shaped(group_dtype(run, vector.group, name),
                  is_whole ? Shape{*vector.state_length} : vector.shape,
                  pieces_of(run, is_whole ? vector.state_slots : vector.slots, name));
    }
  }
  write_scalars(file, run, vector);
  file.pickle.end_dict();
}

bool has_states(const SavedRun& run, const FlatVector& vector) {
  if (vector.state_length == 0) return false;
  const SinkGroup& group = run.model.groups[vector.group];
  if (!vector.is_whole) return !group.states.empty() || !group.scalars.empty();
  return !run.model.parameters[vector.slots.front().parameter].states.empty();
}

std::vector<std::string> note_filled_states(const SavedRun& run) {
  std::vector<std::string> notes;
  for (const SinkGroup& group : run.model.groups) {
    for (const std::string& name : group.states) {
      std::size_t count = 0;
      std::string first;
      for (const std::size_t i : group.parameters) {
        if (run.model.parameters[i].state(name)) continue;
        if (count++ == 0) first = run.model.parameters[i].fqn;
      }
      if (count > 0) {
        notes.push_back(fmt::format("{} parameters have no {}, {} first: written as zeros", count,
                                    name, first));
      }
    }
  }
  return notes;
}

std::string remark_on_wide_weights(const SinkModel& model) {
  return fmt::format(
      "DeepSpeed has the weights of a run in one type: its module has {} of them, {} first, "
      "rounded "
      "to {}. The optimizer has them as they are, and UniShard reads these",
      model.wide_weights.size(), quote(model.wide_weights.front()), name_of(model.precision));
}

}  // namespace

SavedRun::SavedRun(const Catalog& saved, const ModelRank& of_rank)
    : catalog(saved), rank(of_rank), model(describe_model(saved)) {
  notes = model.notes;
  facts = describe_run(catalog, model, notes);
  if (rank.tensor_ranks == 1) join_shard_widths(facts.client_state);
}

void write_world(torch::PickleWriter& pickle, const SavedRun& run) {
  pickle.str("dp_world_size");
  pickle.integer(run.catalog.world_size);
  pickle.str("mp_world_size");
  pickle.integer(std::int64_t{run.rank.stages} * run.rank.tensor_ranks);
  pickle.str("checkpoint_parallel_dimensions");
  write_plain(pickle, {{"pp_degree", run.rank.stages}, {"tp_degree", run.rank.tensor_ranks}});
}

void check_shape(const Catalog& catalog, const SinkParameter& parameter, TensorIndex tensor) {
  if (catalog.tensors[tensor].shape == parameter.shape) return;
  raise(ErrorCode::Unsupported,
        fmt::format("{}: its shape differs from its parameter's, which DeepSpeed's partitions "
                    "cannot hold",
                    catalog.tensors[tensor].label()),
        "choose --to deepspeed --stage 0, or another format");
}

void write_model_file(ArchiveDraft& file, const SavedRun& run, const ModelFile& what) {
  torch::PickleWriter& pickle = file.pickle;
  pickle.begin_dict();
  write_module(file, run, what);
  write_buffer_names(file, run);
  pickle.str("optimizer");
  if (what.optimizer) {
    what.optimizer(file);
  } else {
    pickle.none();
  }
  write_shapes(file, run, what);
  write_progress(pickle, run.facts);
  write_world(pickle, run);
  write_origin(pickle, run.facts);
  if (what.expert_layers != nullptr) write_expert_counts(pickle, *what.expert_layers);
  const Json& client = run.facts.client_state;
  // With experts, DeepSpeed refuses to save a client state with this key.
  if (what.has_shapes && !what.partitioned && what.expert_layers == nullptr &&
      !(client.is_object() && client.contains(kCutPatterns))) {
    pickle.str(kCutPatterns);  // ds_to_universal asks for it, empty is enough
    write_plain(pickle, Json::object());
  }
  write_client_state(file, run.facts);
  pickle.end_dict();
}

void write_optimizer_state(ArchiveDraft& file, const SavedRun& run,
                           const std::vector<FlatVector>& vectors) {
  file.pickle.begin_dict();
  file.pickle.str("state");
  file.pickle.begin_dict();
  std::vector<std::vector<std::int64_t>> members(run.model.groups.size());
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    members[vectors[i].group].push_back(static_cast<std::int64_t>(i));
    if (!has_states(run, vectors[i])) continue;
    file.pickle.integer(static_cast<std::int64_t>(i));
    write_states(file, run, vectors[i]);
  }
  file.pickle.end_dict();
  file.pickle.str("param_groups");
  file.pickle.begin_list();
  for (std::size_t g = 0; g < members.size(); ++g) {
    write_group(file.pickle, run.model.groups[g], members[g]);
  }
  file.pickle.end_list();
  file.pickle.end_dict();
}

void write_master(ArchiveDraft& file, const SavedRun& run, const FlatVector& vector,
                  const Shape& shape) {
  file.shaped(group_dtype(run, vector.group, state::kFp32), shape,
              pieces_of(run, vector.slots, state::kFp32));
}

void add_notes(const SavedRun& run, OutputDraft& draft, bool fills) {
  std::vector<bool> placed(run.catalog.tensors.size());
  for (const torch::Placement& placement : draft.plan.placements) placed[placement.tensor] = true;
  std::unordered_set<std::string_view> is_model;
  for (const ModuleEntry& entry : run.model.module) is_model.insert(entry.fqn);
  for (std::size_t i = 0; i < placed.size(); ++i) {
    const TensorInfo& tensor = run.catalog.tensors[i];
    const bool needs_bytes = tensor.elements() > 0 || !is_model.contains(tensor.fqn);
    if (!placed[i] && !tensor.derived && needs_bytes) draft.plan.left_out.push_back(i);
  }
  std::vector<std::string>& notes = draft.plan.notes;
  std::ranges::copy(run.notes, std::back_inserter(notes));
  std::ranges::move(note_left_out(run.catalog, run.model, draft.plan.left_out),
                    std::back_inserter(notes));
  if (fills) std::ranges::move(note_filled_states(run), std::back_inserter(notes));
  if (!run.model.wide_weights.empty())
    draft.plan.remarks.push_back(remark_on_wide_weights(run.model));
}

bool has_experts(const SavedRun& run) {
  return std::ranges::any_of(run.model.parameters, [](const SinkParameter& parameter) {
    return deepspeed::split_expert(parameter.fqn).has_value();
  });
}

/// `latest` of a UniShard run is what that run resumes from.
void require_foreign_latest(Storage& storage, const Path& file) {
  const Path folder = file.parent_path();
  if (storage.kind(file) == EntryKind::Missing || file.filename() != kLatestFile) return;
  const std::optional<std::string> latest = read_latest(storage, folder);
  if (!latest || !is_unishard_checkpoint(storage, folder / *latest)) return;
  raise(ErrorCode::AlreadyExists,
        fmt::format("{} names {}, which is a UniShard checkpoint", file.native(), quote(*latest)),
        "choose another folder: DeepSpeed's checkpoints need a `latest` of their own; nothing was "
        "written");
}

std::unique_ptr<Sink> make_folder_sink(Storage& storage, const Path& folder, const std::string& tag,
                                       std::string_view latest_file, Catalog catalog,
                                       OutputDraft draft, const WorkSplit& share,
                                       SideFiles side_files) {
  validate_tag(tag);
  std::optional<torch::LatestFile> latest;
  if (!latest_file.empty()) latest = torch::LatestFile{&storage, folder / latest_file, tag};
  if (latest && share.rank == 0) require_foreign_latest(storage, latest->path);
  const auto partial =
      std::make_shared<PartialOutput>(storage, folder / tag, PartialOutput::Shape::Folder, share);
  auto output = std::make_unique<torch::TorchOutput>(storage, partial->path());
  for (torch::ArchivePlan& archive : draft.archives) output->add(std::move(archive));
  auto beside = [&storage, folder, side_files = std::move(side_files)] {
    for (const auto& [name, content] : side_files) {
      if (storage.kind(folder / name) == EntryKind::Missing)
        replace_text(storage, folder / name, content);
    }
  };
  return std::make_unique<torch::PlacedSink>(std::move(catalog), std::move(draft.plan),
                                             torch::Ending{.partial = partial,
                                                           .complete = {},
                                                           .beside = std::move(beside),
                                                           .latest = std::move(latest)},
                                             std::move(output), share);
}

}  // namespace unishard::converters::deepspeed_sink
