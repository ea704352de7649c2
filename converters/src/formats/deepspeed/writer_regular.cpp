// Writes DeepSpeed's ordinary checkpoint as DeepSpeed itself would have written it for the
// catalog's world size and stage, so it loads bit for bit without conversion. Stage 0: everything
// is in the model file. Stages 1 and 2: a group is one vector, split into equal pieces. Stage 3:
// every parameter is split by itself.
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"

#include "formats/deepspeed/writer_files.hpp"

#include <fmt/format.h>

namespace unishard::converters {
namespace deepspeed_sink {
namespace {

class RegularDraft {
 public:
  explicit RegularDraft(const SavedRun& run) : run_(run), rules_(partition_rules(run.catalog)) {}

  OutputDraft make() {
    if (run_.catalog.stage == 0) {
      stage_0();
    } else if (run_.catalog.stage == 3) {
      stage_3();
    } else {
      stage_1_and_2();
    }
    return std::move(draft_);
  }

 private:
  std::uint32_t world_size() const { return run_.catalog.world_size; }

  std::string optimizer_file(std::uint32_t rank) const {
    return fmt::format("{}zero_pp_rank_{}_mp_rank_00_optim_states.pt",
                       run_.model.precision == DType::BFloat16 ? "bf16_" : "", rank);
  }

  void model_file(const std::string& name, const ModelFile& what) {
    ArchiveDraft file = draft_.next(run_.catalog);
    write_model_file(file, run_, what);
    draft_.archives.push_back(file.finish(name));
  }

  void stage_0() {
    ModelFile what;
    if (run_.model.precision == DType::Float32) {
      what.optimizer = [this](ArchiveDraft& file) {
        write_optimizer_state(file, run_, single_parameters(run_.model));
      };
    } else {
      what.optimizer = [this](ArchiveDraft& file) { write_16_bit_wrapper(file); };
    }
    model_file("mp_rank_00_model_states.pt", what);
  }

  /// FP16_Optimizer around a fused Adam, else FP16_UnfusedOptimizer; bf16 runs use them as well.
  void write_16_bit_wrapper(ArchiveDraft& file) {
    const bool fused = run_.is_fused();
    const std::vector<FlatVector> vectors =
        fused ? fused_groups(run_.model) : single_parameters(run_.model);
    torch::PickleWriter& pickle = file.pickle;
    pickle.begin_dict();
    if (!fused || run_.model.precision == DType::Float16) write_scale(pickle);
    pickle.str("optimizer_state_dict");
    write_optimizer_state(file, run_, vectors);
    pickle.str(fused ? "fp32_groups_flat" : "fp32_groups");
    write_masters(file, vectors, fused);
    if (fused) {
      pickle.str("clip_grad");
      pickle.real(run_.facts.clip_grad.value_or(1.0));  // DeepSpeed's default
    }
    pickle.end_dict();
  }

  void write_scale(torch::PickleWriter& pickle) {
    const Json& scaler = run_.facts.loss_scaler;
    Json scale = {{"dynamic_loss_scale", scaler["dynamic"]},
                  {"cur_scale", scaler["cur_scale"]},
                  {"cur_iter", run_.facts.global_steps}};
    const Json& saved = run_.catalog.loss_scaler;
    if (saved.is_object() && saved.contains("cur_iter")) scale["cur_iter"] = saved["cur_iter"];
    for (const char* key : {"last_overflow_iter", "scale_factor", "scale_window"}) {
      if (scaler.contains(key)) scale[key] = scaler[key];
    }
    for (const auto& [key, value] : scale.items()) {
      pickle.str(key);
      write_plain(pickle, value);
    }
  }

  /// Fused: one tensor per group. Otherwise one list per group.
  void write_masters(ArchiveDraft& file, const std::vector<FlatVector>& vectors, bool fused) {
    file.pickle.begin_list();
    for (std::size_t i = 0; i < vectors.size(); ++i) {
      const bool opens = i == 0 || vectors[i].group != vectors[i - 1].group;
      if (!fused && opens) {
        if (i > 0) file.pickle.end_list();
        file.pickle.begin_list();
      }
      write_master(file, run_, vectors[i], vectors[i].shape);
    }
    if (!fused) file.pickle.end_list();
    file.pickle.end_list();
  }

  void stage_1_and_2() {
    std::vector<PartitionedGroup> groups;
    ModelFile what;
    what.has_shapes = true;
    for (std::size_t g = 0; g < run_.model.groups.size(); ++g) {
      groups.push_back(partition(run_.model, g, rules_));
      what.shapes.push_back(groups.back().order);
    }
    model_file("mp_rank_00_model_states.pt", what);
    for (std::uint32_t rank = 0; rank < world_size(); ++rank) {
      ArchiveDraft file = draft_.next(run_.catalog);
      open_optimizer_file(file.pickle);
      write_partitions(file, groups, rank);
      close_optimizer_file(file.pickle);
      draft_.archives.push_back(file.finish(optimizer_file(rank)));
    }
  }

  void open_optimizer_file(torch::PickleWriter& pickle) {
    pickle.begin_dict();
    pickle.str("optimizer_state_dict");
    pickle.begin_dict();
    pickle.str("zero_stage");  // DeepSpeed reads a number like its ZeroStageEnum
    pickle.integer(run_.catalog.stage);
    write_scaling(pickle, run_.facts);
  }

  void close_optimizer_file(torch::PickleWriter& pickle) {
    pickle.end_dict();
    write_origin(pickle, run_.facts);
    pickle.end_dict();
  }

  void write_partitions(ArchiveDraft& file, const std::vector<PartitionedGroup>& groups,
                        std::uint32_t rank) {
    std::vector<FlatVector> pieces;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      pieces.push_back(piece_of(run_.model, g, groups[g], rank));
    }
    torch::PickleWriter& pickle = file.pickle;
    if (run_.facts.clip_grad) {
      pickle.str("clip_grad");
      pickle.real(*run_.facts.clip_grad);
    }
    pickle.str("base_optimizer_state");
    write_optimizer_state(file, run_, pieces);
    pickle.str("single_partition_of_fp32_groups");  // without the padding, unlike the states
    pickle.begin_list();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      write_master(file, run_, pieces[g], {groups[g].piece - groups[g].padding(rank)});
    }
    pickle.end_list();
    write_paddings(pickle, groups, rank);
    pickle.str("ds_version");
    pickle.str(kDeepSpeedVersion);
    write_slice_mappings(pickle, pieces);
  }

  void write_paddings(torch::PickleWriter& pickle, const std::vector<PartitionedGroup>& groups,
                      std::uint32_t rank) {
    Json paddings = Json::array(), gaps = Json::array(), counts = Json::array();
    for (const PartitionedGroup& group : groups) {
      paddings.push_back(group.padding(rank));
      gaps.push_back(group.gaps);
      counts.push_back(world_size());
    }
    pickle.str("group_paddings");
    write_plain(pickle, paddings);
    pickle.str("param_alignment_paddings");
    write_plain(pickle, gaps);
    pickle.str("partition_count");
    write_plain(pickle, counts);
  }

  /// Maps parts of the piece to parameters; ds_to_universal uses it.
  void write_slice_mappings(torch::PickleWriter& pickle, const std::vector<FlatVector>& pieces) {
    pickle.str("param_slice_mappings");
    pickle.begin_list();
    for (const FlatVector& piece : pieces) {
      pickle.begin_ordered_dict();
      for (const Slot& slot : piece.slots) {
        pickle.str(run_.model.parameters[slot.parameter].fqn);
        pickle.global("deepspeed.utils.tensor_fragment", "fragment_address");
        pickle.new_object();
        write_plain(pickle, {{"numel", slot.range.size()}, {"start", slot.at}});
        pickle.build();
      }
      pickle.end_dict();
    }
    pickle.end_list();
  }

  void stage_3() {
    const std::vector<SubGroup> all = sub_groups(run_.model, rules_);
    ModelFile what;
    what.partitioned = what.has_shapes = true;
    for (const SubGroup& sub_group : all) what.shapes.push_back(sub_group.parameters);
    for (std::uint32_t rank = 0; rank < world_size(); ++rank) {
      what.rank = rank;
      model_file(fmt::format("zero_pp_rank_{}_mp_rank_00_model_states.pt", rank), what);
      ArchiveDraft file = draft_.next(run_.catalog);
      open_optimizer_file(file.pickle);
      write_sub_groups(file, all, rank);
      close_optimizer_file(file.pickle);
      draft_.archives.push_back(file.finish(optimizer_file(rank)));
    }
  }

  void write_sub_groups(ArchiveDraft& file, const std::vector<SubGroup>& all, std::uint32_t rank) {
    std::vector<FlatVector> pieces;
    for (const SubGroup& sub_group : all) {
      pieces.push_back(piece_of(run_.model, sub_group, rank, world_size()));
    }
    file.pickle.str("partition_count");
    file.pickle.integer(world_size());
    file.pickle.str("optimizer_state_dict");
    write_optimizer_state(file, run_, pieces);
    file.pickle.str("fp32_flat_groups");
    file.pickle.begin_list();
    for (const FlatVector& piece : pieces) write_master(file, run_, piece, piece.shape);
    file.pickle.end_list();
  }

  const SavedRun& run_;
  const PartitionRules rules_;
  OutputDraft draft_;
};

}  // namespace
}  // namespace deepspeed_sink

std::unique_ptr<Sink> make_deepspeed_sink(Storage& storage, Path folder, std::string tag,
                                          Catalog catalog, const WorkSplit& share,
                                          SideFiles side_files, bool moves_latest) {
  const deepspeed_sink::SavedRun run(catalog);
  deepspeed_sink::OutputDraft draft = deepspeed_sink::RegularDraft(run).make();
  const bool is_flat = catalog.stage > 0 || run.is_fused();
  deepspeed_sink::add_notes(run, draft, is_flat);
  if (deepspeed_sink::has_experts(run)) {
    draft.plan.notes.emplace_back(
        "experts in files of their own, without which DeepSpeed's MoE layers do not load: convert "
        "--to deepspeed-universal, and resume with ep_size 1");
  }
  std::optional<std::string> latest;
  if (moves_latest) latest = "latest";
  return deepspeed_sink::make_folder_sink(storage, folder, tag, std::move(latest),
                                          std::move(catalog), std::move(draft), share,
                                          std::move(side_files));
}

}  // namespace unishard::converters
