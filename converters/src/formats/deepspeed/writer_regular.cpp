// Writes DeepSpeed's ordinary checkpoint as DeepSpeed itself would have written it for the
// catalog's world size and stage, so it loads bit for bit without conversion. Stage 0: everything
// is in the model file. Stages 1 and 2: a group is one vector, split into equal pieces; a group of
// experts is one for each expert rank, split among the ranks that hold the same experts. Stage 3:
// every parameter is split by itself.
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"

#include "formats/deepspeed/stage_layers.hpp"
#include "formats/deepspeed/writer_experts.hpp"
#include "formats/deepspeed/writer_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

namespace unishard::converters {
namespace deepspeed_sink {
namespace {

class RegularDraft {
 public:
  explicit RegularDraft(const SavedRun& run)
      : run_(run),
        rules_(partition_rules(run.catalog)),
        experts_(ExpertShares::of(run.catalog, run.model)) {}

  /// Returns whether the experts get files of their own.
  bool has_expert_files() const { return experts_.has_value(); }

  OutputDraft make() {
    if (run_.catalog.stage == 0) {
      stage_0();
    } else if (run_.catalog.stage == 3) {
      stage_3();
    } else {
      stage_1_and_2();
    }
    if (experts_) expert_files();
    if (run_.rank.layers != nullptr) layer_files(*run_.rank.layers);
    return std::move(draft_);
  }

 private:
  std::uint32_t world_size() const { return run_.catalog.world_size; }

  std::string optimizer_file(std::uint32_t rank) const {
    return fmt::format("{}zero_pp_rank_{}_{}_optim_states.pt",
                       run_.model.precision == DType::BFloat16 ? "bf16_" : "", rank, model_rank());
  }
  std::string model_rank() const { return fmt::format("mp_rank_{:02}", run_.rank.number()); }

  /// Expert ranks of a group; 1 for one without experts.
  std::uint32_t expert_ranks(std::size_t group) const {
    return experts_ ? experts_->size(group) : 1;
  }
  std::uint32_t share_of(std::size_t group, std::uint32_t rank) const {
    return experts_ ? experts_->share(group, rank) : 0;
  }
  std::uint32_t place_of(std::size_t group, std::uint32_t rank) const {
    return experts_ ? experts_->place(group, rank) : rank;
  }
  std::vector<std::size_t> members(std::size_t group, std::uint32_t share) const {
    return experts_ ? experts_->members(group, share) : run_.model.groups[group].parameters;
  }

  void model_file(const std::string& name, ModelFile what) {
    if (experts_) what.expert_layers = &experts_->layers();
    ArchiveDraft file = draft_.next(run_.catalog);
    write_model_file(file, run_, what);
    draft_.archives.push_back(file.finish(name));
  }

  /// Every model file and every file of an expert rank has the optimizer of one rank.
  void stage_0() {
    ModelFile what;
    what.optimizer = [this](ArchiveDraft& file) { write_optimizer(file, 0); };
    model_file(model_rank() + "_model_states.pt", what);
    for (std::uint32_t e = 0; experts_ && e < experts_->largest(); ++e) {
      ArchiveDraft file = draft_.next(run_.catalog);
      file.pickle.begin_dict();
      file.pickle.str("optimizer");
      write_optimizer(file, e);
      file.pickle.end_dict();
      draft_.archives.push_back(
          file.finish(fmt::format("expp_rank_{}_mp_rank_00_optim_states.pt", e)));
    }
  }

  void write_optimizer(ArchiveDraft& file, std::uint32_t expert_rank) {
    GroupMembers groups;
    for (std::size_t g = 0; g < run_.model.groups.size(); ++g)
      groups.push_back(members(g, std::min(expert_rank, expert_ranks(g) - 1)));
    if (run_.model.precision == DType::Float32) {
      write_optimizer_state(file, run_, single_parameters(run_.model, groups));
    } else {
      write_16_bit_wrapper(file, groups);
    }
  }

  /// FP16_Optimizer around a fused Adam, else FP16_UnfusedOptimizer; bf16 runs use them as well.
  void write_16_bit_wrapper(ArchiveDraft& file, const GroupMembers& groups) {
    const bool fused = run_.is_fused();
    const std::vector<FlatVector> vectors =
        fused ? fused_groups(run_.model, groups) : single_parameters(run_.model, groups);
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

  /// What a rank has of a group: its place among the ranks that share a vector.
  struct RankPart {
    const PartitionedGroup* vector = nullptr;
    std::uint32_t place = 0;
  };

  void stage_1_and_2() {
    std::vector<std::vector<PartitionedGroup>> vectors;  // of each group, for each expert rank
    ModelFile what;
    what.has_shapes = true;
    for (std::size_t g = 0; g < run_.model.groups.size(); ++g) {
      PartitionRules rules = rules_;
      rules.world_size /= expert_ranks(g);
      auto& of_group = vectors.emplace_back();
      for (std::uint32_t e = 0; e < expert_ranks(g); ++e)
        of_group.push_back(partition(run_.model, members(g, e), rules));
      what.shapes.push_back(of_group.front().order);  // rank 0 has the first experts
    }
    model_file(model_rank() + "_model_states.pt", what);
    for (std::uint32_t rank = 0; rank < world_size(); ++rank) {
      std::vector<RankPart> parts;
      for (std::size_t g = 0; g < vectors.size(); ++g)
        parts.push_back({&vectors[g][share_of(g, rank)], place_of(g, rank)});
      ArchiveDraft file = draft_.next(run_.catalog);
      open_optimizer_file(file.pickle);
      write_partitions(file, parts);
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

  void write_partitions(ArchiveDraft& file, const std::vector<RankPart>& parts) {
    std::vector<FlatVector> pieces;
    for (std::size_t g = 0; g < parts.size(); ++g)
      pieces.push_back(piece_of(run_.model, g, *parts[g].vector, parts[g].place));
    torch::PickleWriter& pickle = file.pickle;
    if (run_.facts.clip_grad) {
      pickle.str("clip_grad");
      pickle.real(*run_.facts.clip_grad);
    }
    pickle.str("base_optimizer_state");
    write_optimizer_state(file, run_, pieces);
    pickle.str("single_partition_of_fp32_groups");  // without the padding, unlike the states
    pickle.begin_list();
    for (std::size_t g = 0; g < parts.size(); ++g) {
      const PartitionedGroup& vector = *parts[g].vector;
      write_master(file, run_, pieces[g], {vector.piece - vector.padding(parts[g].place)});
    }
    pickle.end_list();
    write_paddings(pickle, parts);
    pickle.str("ds_version");
    pickle.str(kDeepSpeedVersion);
    write_slice_mappings(pickle, pieces);
  }

  void write_paddings(torch::PickleWriter& pickle, const std::vector<RankPart>& parts) {
    Json paddings = Json::array(), gaps = Json::array(), counts = Json::array();
    for (std::size_t g = 0; g < parts.size(); ++g) {
      paddings.push_back(parts[g].vector->padding(parts[g].place));
      gaps.push_back(parts[g].vector->gaps);
      counts.push_back(world_size() / expert_ranks(g));
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
        pickle.str(experts_ ? experts_->local_name(piece.group, slot.parameter)
                            : run_.model.parameters[slot.parameter].fqn);
        pickle.global("deepspeed.utils.tensor_fragment", "fragment_address");
        pickle.new_object();
        write_plain(pickle, {{"numel", slot.range.size()}, {"start", slot.at}});
        pickle.build();
      }
      pickle.end_dict();
    }
    pickle.end_list();
  }

  /// The files of stage 3 have no weights: those in 16 bits are rounded again from the masters,
  /// which must be float32.
  void require_float32_masters() const {
    const auto& tensors = run_.catalog.tensors;
    for (const SinkGroup& group : run_.model.groups) {
      std::vector<TensorIndex> masters, narrow;
      for (const std::size_t i : group.parameters) {
        const SinkParameter& parameter = run_.model.parameters[i];
        masters.push_back(parameter.master);
        const TensorIndex weights = parameter.weights.value_or(parameter.master);
        if (size_of(tensors[weights].dtype) == 2) narrow.push_back(weights);
      }
      if (narrow.empty() || flat_dtype(run_.catalog, masters) != DType::Float64) continue;
      raise(
          ErrorCode::Unsupported,
          fmt::format("{} is {} in a group with parameters in float64: DeepSpeed has one type for "
                      "the masters of a group, and from float64 stage 3 gives no 16-bit weights",
                      tensors[narrow.front()].label(), name_of(tensors[narrow.front()].dtype)),
          "choose --stage 2, or another format");
    }
  }

  void stage_3() {
    require_float32_masters();
    const std::vector<SubGroup> all = sub_groups(run_.model, rules_);
    ModelFile what;
    what.partitioned = what.has_shapes = true;
    for (const SubGroup& sub_group : all) what.shapes.push_back(sub_group.parameters);
    for (std::uint32_t rank = 0; rank < world_size(); ++rank) {
      what.rank = rank;
      model_file(fmt::format("zero_pp_rank_{}_{}_model_states.pt", rank, model_rank()), what);
      ArchiveDraft file = draft_.next(run_.catalog);
      open_optimizer_file(file.pickle);
      write_sub_groups(file, all, rank);
      close_optimizer_file(file.pickle);
      draft_.archives.push_back(file.finish(optimizer_file(rank)));
    }
  }

  void write_sub_groups(ArchiveDraft& file, const std::vector<SubGroup>& all, std::uint32_t rank) {
    std::vector<FlatVector> pieces;
    pieces.reserve(all.size());
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

  /// One file for each expert, with the names that it has in the whole model.
  void expert_files() {
    std::map<std::pair<std::size_t, std::uint32_t>,
             std::vector<std::pair<std::string, std::size_t>>>
        experts;  // by layer and number: names and entries of the module
    const auto take = [&](const std::string& fqn, std::size_t entry) {
      const auto name = deepspeed::split_expert(fqn);
      if (!name) return;
      const auto& layers = experts_->layers();
      const auto layer = std::ranges::find(layers, name->prefix, &deepspeed::ExpertLayer::prefix);
      if (layer == layers.end()) return;
      const auto number = static_cast<std::size_t>(layer - layers.begin());
      experts[{number, name->number}].emplace_back(fqn, entry);
    };
    const SinkModel& model = run_.model;
    for (std::size_t i = 0; i < model.module.size(); ++i) take(model.module[i].fqn, i);
    for (const auto& [alias, entry] : model.aliases) take(alias, entry);
    for (const auto& [place, entries] : experts) {
      ArchiveDraft file = draft_.next(run_.catalog);
      file.pickle.begin_dict();
      for (const auto& [fqn, entry] : entries) {
        file.pickle.str(fqn);
        file.tensor(model.module[entry].tensor, model.module[entry].dtype);
      }
      file.pickle.end_dict();
      draft_.archives.push_back(file.finish(
          fmt::format("layer_{}_expert_{}_mp_rank_00_model_states.pt", place.first, place.second)));
    }
  }

  /// One file for each layer of the stage, also for one without tensors: the layer of a module
  /// without tensors needs it, and that of a function does not look for it.
  void layer_files(const StageLayers& layers) {
    const ModelRank& rank = run_.rank;
    std::map<std::uint32_t, LayerEntries> by_layer;
    std::map<std::string, LayerEntries, std::less<>> by_key;  // of tied modules
    const auto take = [&](const std::string& fqn, std::size_t entry) {
      const LayerName name = *split_layer_name(fqn);
      auto& entries =
          name.tied_key.empty() ? by_layer[name.layer] : by_key[std::string(name.tied_key)];
      entries.emplace_back(name.local, entry);
    };
    for (std::size_t i = 0; i < run_.model.module.size(); ++i) take(run_.model.module[i].fqn, i);
    for (const auto& [alias, entry] : run_.model.aliases) take(alias, entry);
    for (std::uint32_t i = layers.first(rank.stage); i < layers.last(rank.stage); ++i) {
      const auto key = layers.tied_key(i);
      layer_file(i, key ? by_key.find(*key)->second : by_layer[i]);
    }
  }

  using LayerEntries = std::vector<std::pair<std::string, std::size_t>>;  // local name, entry

  void layer_file(std::uint32_t layer, const LayerEntries& entries) {
    ArchiveDraft file = draft_.next(run_.catalog);
    file.pickle.begin_ordered_dict();
    for (const auto& [name, entry] : entries) {
      file.pickle.str(name);
      file.tensor(run_.model.module[entry].tensor, run_.model.module[entry].dtype);
    }
    file.pickle.end_dict();
    const std::string part = run_.rank.tensor_ranks > 1
                                 ? fmt::format("model_{:02}-", run_.rank.tensor_rank)
                                 : std::string();
    draft_.archives.push_back(
        file.finish(fmt::format("layer_{:02}-{}model_states.pt", layer, part)));
  }

  const SavedRun& run_;
  const PartitionRules rules_;
  const std::optional<ExpertShares> experts_;
  OutputDraft draft_;
};

}  // namespace

OutputDraft draft_regular(const SavedRun& run) { return RegularDraft(run).make(); }

}  // namespace deepspeed_sink

namespace deepspeed_sink {
namespace {

/// Names what the catalog has of a loss scaler and stage 0 does not keep: DeepSpeed's wrapper of
/// the optimizer reads back what RegularDraft writes, and takes the rest from ds_config.
void note_scaler(const SavedRun& run, std::vector<std::string>& notes) {
  const Json& saved = run.catalog.loss_scaler;
  if (run.catalog.stage != 0 || !saved.is_object() || !run.facts.scales_dynamically()) return;
  constexpr std::array<std::string_view, 8> kKept = {
      "dynamic",      "dynamic_loss_scale", "cur_scale", "cur_iter", "last_overflow_iter",
      "scale_factor", "scale_window",       "dtype"};
  std::vector<std::string> lost;
  for (const auto& [key, value] : saved.items()) {
    if (std::ranges::count(kKept, key) == 0) lost.push_back(key);
  }
  if (!lost.empty())
    notes.push_back(fmt::format("loss scaler: {}: at stage 0 DeepSpeed takes them from ds_config",
                                fmt::join(lost, ", ")));
}

}  // namespace
}  // namespace deepspeed_sink

std::unique_ptr<Sink> make_deepspeed_sink(Storage& storage, const Path& folder,
                                          const std::string& tag, Catalog catalog,
                                          const WorkSplit& share, SideFiles side_files,
                                          bool moves_latest) {
  const deepspeed_sink::SavedRun run(catalog);
  deepspeed_sink::RegularDraft regular(run);
  deepspeed_sink::OutputDraft draft = regular.make();
  const bool is_flat = catalog.stage > 0 || run.is_fused();
  deepspeed_sink::add_notes(run, draft, is_flat);
  deepspeed_sink::note_scaler(run, draft.plan.notes);
  if (deepspeed_sink::has_experts(run) && !regular.has_expert_files()) {
    draft.plan.notes.emplace_back(
        "experts in files of their own, without which DeepSpeed's MoE layers do not load: it "
        "writes these at stages 0 to 2, for groups of experts that are called ep_size_<number>");
  }
  return deepspeed_sink::make_folder_sink(storage, folder, tag, moves_latest ? "latest" : "",
                                          std::move(catalog), std::move(draft), share,
                                          std::move(side_files));
}

}  // namespace unishard::converters
