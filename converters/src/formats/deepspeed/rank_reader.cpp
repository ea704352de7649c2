#include "formats/deepspeed/rank_reader.hpp"

#include "unishard/format/error.hpp"

#include "containers/equal_elements.hpp"
#include "formats/deepspeed/cpu_states.hpp"
#include "formats/deepspeed/expert_groups.hpp"
#include "formats/deepspeed/expert_moments.hpp"
#include "formats/deepspeed/expert_stage0.hpp"
#include "formats/deepspeed/flat_groups.hpp"
#include "formats/deepspeed/frozen_pieces.hpp"
#include "formats/deepspeed/module_doubts.hpp"
#include "formats/deepspeed/shard_copies.hpp"
#include "formats/deepspeed/stage0.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

namespace unishard::converters::deepspeed {
namespace {

class RankReader {
 public:
  RankReader(Storage& storage, const std::shared_ptr<FilePool>& pool, const RankInput& input,
             Notes& notes)
      : storage_(storage),
        pool_(pool),
        in_(input),
        files_(input.files),
        where_(input.is_only ? input.folder.string()
                             : fmt::format("{}: {}", input.folder.string(), input.name())),
        notes_(notes) {}

  RankContent read() {
    if (!files_.optimizers.empty()) {
      read_partitions();
    } else if (files_.model) {
      read_without_partitions();
    } else {
      raise_no_files();
    }
    take_run_facts(model_, catalog());
    restore_groups(model_, catalog());
    catalog().step = choose_step(steps_, model_, catalog(), notes_);
    compare_with_module();
    parts_.format = "deepspeed";
    parts_.module_part = module_part_of(model_);
    parts_.rank_of_file = rank_of_file;
    if (in_.experts != nullptr && !in_.experts->optimizers.empty())
      parts_.rank_of_file = expert_ranks_of_files(*in_.experts);
    return {std::move(parts_),         model_.name,   world_size_, model_.global_steps,
            std::move(model_.aliases), has_optimizer_};
  }

 private:
  Catalog& catalog() { return parts_.catalog; }
  TorchFile open(const Path& path) const { return open_rank_file(pool_, path); }

  [[noreturn]] void raise_no_files() const {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: {} model files of stage 3 and no optimizer file: "
                      "*_zero_pp_rank_<r>_{}_optim_states.pt are missing for all ranks",
                      where_, files_.rank_models.size(), in_.name()),
          "copy them from the nodes that wrote them, or use another checkpoint");
  }

  void read_without_partitions() {
    const TorchFile file = open(*files_.model);
    model_ = read_model_file(file, false, notes_);
    add_module_files();
    take_aliases();
    world_size_ = model_.world_size.value_or(1);
    if (model_.param_shapes && !present(file.root(), "optimizer"))
      check_complete(in_.folder, {}, world_size_, files_of("optimizer"), "dp_world_size");
    Stage0Optimizer optimizer = read_unpartitioned(file);
    has_optimizer_ = optimizer.is_there;
    if (!has_optimizer_) remark_unnamed_masters(file);
    steps_ = std::move(optimizer.steps);
    parameters_ = std::move(optimizer.parameters);
    catalog().world_size =
        static_cast<std::uint32_t>(std::clamp<std::uint64_t>(world_size_, 1, ~0u));
    catalog().loss_scaler = std::move(optimizer.loss_scaler);
    if (!present(file.root(), "optimizer")) doubt_missing_masters(model_, notes_);
    if (optimizer.is_there) catalog().groups = describe_groups(optimizer.settings, parameters_);
    name_cpu_states(parameters_, catalog().groups, notes_);
    check_ties(model_, parameters_, notes_);
    assemble({&model_, &parameters_, &frozen_, false, optimizer.is_there}, parts_, notes_);
  }

  /// Says that the module's weights are rounded, although the fp32 masters are in the files.
  void remark_unnamed_masters(const TorchFile& file) {
    const auto optimizer = present(file.root(), "optimizer");
    if (!optimizer) return;
    if (present(*optimizer, "fp32_groups_flat") || present(*optimizer, "fp32_groups"))
      parts_.remarks.push_back(
          fmt::format("{}: the weights are those of the module, rounded to 16 bits: the "
                      "optimizer's fp32 masters are in the files, and have no names",
                      file.name()));
  }

  Stage0Optimizer read_unpartitioned(const TorchFile& file) {
    if (in_.experts != nullptr) return read_expert_states(file);
    if (!in_.unnamed_states || !present(file.root(), "optimizer"))
      return read_stage0(file, model_, in_.has_whole_tensors, notes_);
    notes_.lose({Role::Optimizer, "optimizer", *in_.unnamed_states});
    return {};
  }

  Stage0Optimizer read_expert_states(const TorchFile& file) {
    if (!in_.experts->optimizers.empty())
      return read_expert_stage0(pool_, file, model_, *in_.experts, notes_);
    if (!present(file.root(), "optimizer")) return {};
    raise(ErrorCode::Corrupt,
          fmt::format("{}: expp_rank_0_mp_rank_00_optim_states.pt and those of the other expert "
                      "ranks are missing: the optimizer's states of the experts are lost",
                      where_),
          kFindStages);
  }

  void read_partitions() {
    const OptimizerFile first = read_optimizer_file(open(files_.optimizers.front().second), notes_);
    const bool is_sliced = first.stage == 3;
    if (is_sliced && !in_.module.empty()) {
      raise(ErrorCode::Unsupported,
            fmt::format("{}: layers or experts in files of their own at ZeRO stage 3 are not read",
                        first.name),
            kGatherExperts);
    }
    read_models(first);
    check_world_size(first);
    const ShapeGroups shapes = shapes_of(first);
    if (in_.experts != nullptr) {
      add_expert_partitions(first, shapes);
    } else {
      add_partitions(first, shapes);
    }
    catalog().world_size = static_cast<std::uint32_t>(world_size_);
    catalog().stage = in_.shapes ? 0 : first.stage;
    catalog().loss_scaler = first.loss_scaler;
    catalog().groups = describe_groups(first.settings, parameters_);
    if (first.settings.is_null()) {
      notes_.add(
          "the settings of the parameter groups (lr, betas, ...) are not in the files: "
          "elastic_checkpoint leaves them out");
    }
    name_cpu_states(parameters_, catalog().groups, notes_);
    check_ties(model_, parameters_, notes_);
    doubt_module(model_, parameters_, notes_);
    if (model_.excludes_frozen && first.stage >= 2)
      parts_.remarks.emplace_back(
          "the run was saved without frozen parameters (exclude_frozen_parameters): where the "
          "model "
          "has some, they are in no file here, and come from where the training began");
    assemble({&model_, &parameters_, &frozen_, is_sliced, true}, parts_, notes_);
  }

  void add_partitions(const OptimizerFile& first, const ShapeGroups& shapes) {
    add_parameters(first, shapes);
    if (first.stage == 3) {
      SlicedGroups groups(shapes, world_size_, parameters_, storage_, pool_, in_.folder);
      ShardCopies copies;
      for_each_rank(first, [&](const OptimizerFile& file, std::uint32_t rank) {
        groups.add_rank(file, rank);
        copies.add(file.name, views_of(file));
        if (!file.tells_its_name && world_size_ > 1) unnamed_ = file.name;
      });
      if (!unnamed_.empty())
        notes_.add(
            fmt::format("nothing in {} says of which rank it is: files of stage 3 whose "
                        "names were swapped could not be told apart",
                        unishard::quote(Path(unnamed_).filename().string())));
      check_swapped(groups.swapped_states(), first);
      return check_saves();
    }
    ConcatenatedGroups groups(shapes, first.gaps, parameters_);
    StatedPartitions stated;
    for_each_rank(first, [&](const OptimizerFile& file, std::uint32_t) {
      groups.add_rank(file);
      stated.add_rank(file);
    });
    groups.check_ends(world_size_, where_);
    check_partitions(stated, shapes, first.gaps, is_round_robin(), where_);
  }

  /// Until the first step, two parameters may be equal, and moments are zeros.
  void check_swapped(std::vector<SwappedState> states, const OptimizerFile& first) {
    if (model_.global_steps <= model_.skipped_steps) return;
    ShardCopies copies;
    for (const SwappedState& state : states) {
      if (state.name == state::kFp32 && !has_one_value(state.view))
        copies.add(state.file, {state.whole_file});
    }
    if (std::ranges::any_of(first.settings, is_lion))  // the CPU's has squares and never uses them
      std::erase_if(states, [](const auto& state) { return state.name == state::kExpAvgSq; });
    if (auto doubt = doubt_about_squares(states)) parts_.remarks.push_back(*std::move(doubt));
    if (auto doubt = doubt_about_copies(states)) parts_.remarks.push_back(*std::move(doubt));
    for (std::string& doubt : doubts_about_zeros(states))
      parts_.remarks.push_back(std::move(doubt));
  }

  /// Stages 1 and 2 of a run with experts.
  void add_expert_partitions(const OptimizerFile& first, const ShapeGroups& shapes) {
    const bool is_data_first =
        model_.config.is_object() &&
        model_.config.value("use_data_before_expert_parallelism", Json()) == Json(true);
    const ExpertGroups experts(*in_.experts, shapes, first, {world_size_, is_data_first});
    const ShapeGroups parameters = experts.parameters();
    for (std::size_t g = 0; g < parameters.size(); ++g) {
      for (const NamedShape& named : parameters[g])
        parameters_.add(named.fqn, named.shape, static_cast<std::int32_t>(g));
    }
    ConcatenatedGroups groups(experts.vectors(), experts.gaps(), parameters_);
    StatedPartitions stated;
    for_each_rank(
        first,
        [&](const OptimizerFile& file, std::uint32_t rank) {
          const OptimizerFile arranged = experts.by_vector(file, rank);
          groups.add_rank(arranged);
          stated.add_rank(arranged, experts.places(rank));
        },
        [&](OptimizerFile file) { return experts.in_first_order(std::move(file)); });
    groups.check_ends(world_size_, where_);
    check_partitions(stated, experts.vectors(), experts.gaps(), is_round_robin(), where_);
    note_equal_experts(parameters_, notes_);
  }

  /// A save at stage 0 leaves the partitions of an earlier save of its tag where they are; nothing
  /// tells which of the two is newer. Pipelines of stage 0 in bf16 write both, with equal content.
  void refuse_two_saves(const TorchFile& model, const OptimizerFile& first) const {
    const auto optimizer = present(model.root(), "optimizer");
    if (!optimizer || is_copy(model, *optimizer, first)) return;
    raise(
        ErrorCode::Unsupported,
        fmt::format("{}: two saves have one tag: {} holds the model and the optimizer of stage 0, "
                    "and {} is of a stage with partitions",
                    where_, unishard::quote(files_.model->filename().string()),
                    unishard::quote(files_.optimizers.front().second.filename().string())),
        "move the files of the save that is not meant into another folder");
  }

  /// Returns whether a stage's `optimizer` has the masters of `file`, which tells no stage.
  bool is_copy(const TorchFile& model, Value optimizer, const OptimizerFile& file) const {
    constexpr std::uint64_t kComparedStart = 4096;
    const auto masters = present(optimizer, "single_partition_of_fp32_groups");
    if (in_.module.empty() || file.tells_stage || !masters) return false;
    if (masters->size() != file.groups.size()) return false;
    for (std::size_t g = 0; g < file.groups.size(); ++g) {
      const TensorView own = tensor_of(model, (*masters)[g], "single_partition_of_fp32_groups");
      const TensorView& other = file.groups[g].master.view;
      const std::uint64_t compared = std::min(kComparedStart, own.elements());
      if (own.dtype != other.dtype || own.shape != other.shape) return false;
      if (own.storage && other.storage &&
          sampled_bytes(own, 0, compared) != sampled_bytes(other, 0, compared)) {
        return false;
      }
    }
    return true;
  }

  /// The model files; stage 3 has one per rank, with each frozen parameter's part in it.
  void read_models(const OptimizerFile& first) {
    if (first.stage != 3) {
      if (!files_.model) {
        raise(ErrorCode::Corrupt,
              fmt::format("{}: {}_model_states.pt is missing", in_.folder.string(), in_.name()),
              "copy it from the node that wrote it, or use another checkpoint");
      }
      const TorchFile file = open(*files_.model);
      refuse_two_saves(file, first);
      model_ = read_model_file(file, false, notes_);
      add_module_files();
      take_aliases();
      world_size_ = model_.world_size.value_or(files_.optimizers.size());
      frozen_ = whole_frozen(model_, notes_);
      if (!files_.rank_models.empty())
        notes_.lose({Role::StaleFile, files_.rank_models.front().second.filename().string(),
                     "and the other model files of stage 3 are left from another save"});
      return;
    }
    if (files_.rank_models.empty())
      check_complete(in_.folder, {}, files_.optimizers.size(), files_of("model"), "the optimizer");
    if (files_.model) {
      refuse_two_saves(open(*files_.model), first);
      notes_.lose({Role::StaleFile, fmt::format("{}_model_states.pt", in_.name())});
    }
    model_ = read_model_file(open(files_.rank_models.front().second), true, notes_);
    take_aliases();
    world_size_ = model_.world_size.value_or(files_.optimizers.size());
    check_complete(in_.folder, files_.rank_models, world_size_, files_of("model"), "dp_world_size");
    FrozenSlices slices(model_, world_size_);
    ShardCopies copies;
    for (const auto& [rank, path] : files_.rank_models) {
      const ModelFile& model = rank == 0 ? model_ : read_other_rank(path);
      require_same_parameters(model);
      slices.add_rank(model, rank, notes_);
      copies.add(model.name, views_of(model));
    }
    frozen_ = slices.take();
  }

  /// The shards of every rank lie in the order of one list.
  void require_same_parameters(const ModelFile& other) const {
    if (!model_.param_shapes || !other.param_shapes) return;
    const ShapeGroups &ours = *model_.param_shapes, &theirs = *other.param_shapes;
    if (ours == theirs) return;
    const auto [group, other_group] = std::ranges::mismatch(ours, theirs);
    std::string what = "the number of groups";
    if (group != ours.end() && other_group != theirs.end()) {
      const auto [named, other_named] = std::ranges::mismatch(*group, *other_group);
      const bool has_ours = named != group->end();
      what = "parameter " + unishard::quote(has_ours ? named->fqn : other_named->fqn);
    }
    raise(ErrorCode::Corrupt,
          fmt::format("{} and {}: {} is not the same in their param_shapes: the files are not of "
                      "one save",
                      model_.name, other.name, what),
          "use another checkpoint, or find the files that belong together");
  }

  void add_module_files() {
    for (const ModuleFile& file : in_.module)
      model_.module.insert(model_.module.end(), file.entries.begin(), file.entries.end());
  }

  static std::vector<TensorView> views_of(const OptimizerFile& file) {
    std::vector<TensorView> views;
    for (const FlatGroup& group : file.groups) {
      views.push_back(group.master.view);
      for (const FlatState& state : group.states) views.push_back(state.view);
    }
    return views;
  }
  static std::vector<TensorView> views_of(const ModelFile& model) {
    std::vector<TensorView> views;
    views.reserve(model.frozen_fragments.size());
    for (const NamedView& frozen : model.frozen_fragments) views.push_back(frozen.view);
    return views;
  }

  /// Where the optimizer and the run have counted different steps, which may be meant, looks for
  /// the files in other saves: the module of stage 3 has no values that could be compared.
  void check_saves() const {
    const std::int64_t counted = model_.global_steps - model_.skipped_steps;
    if (steps_.empty() || std::ranges::max(steps_) == counted) return;
    const Path &optimizer = files_.optimizers.front().second,
               &model = files_.rank_models.front().second;
    const Path other = find_in_other_save(storage_, optimizer, model);
    if (other.empty()) return;
    raise_two_saves(
        optimizer.string(), model.string(),
        fmt::format("the optimizer counts {} steps and the run {}, and one of them is a copy of {}",
                    std::ranges::max(steps_), counted, other.string()));
  }

  ModelFile read_other_rank(const Path& path) {
    ModelFile other = read_model_file(open(path), true, notes_);
    if (other.global_steps != model_.global_steps) {
      raise_two_saves(
          model_.name, other.name,
          fmt::format("global_steps are {} and {}", model_.global_steps, other.global_steps));
    }
    if (other.world_size != model_.world_size)
      raise_two_saves(model_.name, other.name, "dp_world_size differs");
    if (other.client_state != model_.client_state)
      notes_.add("the client state differs between ranks; that of rank 0 is kept");
    if (other.scheduler != model_.scheduler)
      notes_.add("lr_scheduler differs between ranks; that of rank 0 is kept");
    if (other.config != model_.config)
      notes_.add("ds_config differs between ranks; that of rank 0 is kept");
    return other;
  }

  void check_world_size(const OptimizerFile& first) const {
    const auto& counts = first.partition_counts;
    const bool has_experts = in_.experts != nullptr;  // their groups have fewer partitions
    const std::string said_by = model_.world_size ? "dp_world_size" : "the number of files";
    if (!counts.empty() && !has_experts) {
      const std::uint64_t most = std::ranges::max(counts);
      if (std::ranges::min(counts) != most || most != world_size_) {
        raise(ErrorCode::Corrupt,
              fmt::format("{}: partition_count is {}, {} says {} ranks, and {} optimizer files are "
                          "here: the folder mixes saves, or the run partitioned in groups of ranks "
                          "(MiCS, experts), which are not read",
                          where_, fmt::join(counts, ", "), said_by, world_size_,
                          files_.optimizers.size()));
      }
    }
    check_complete(in_.folder, files_.optimizers, world_size_, files_of("optimizer"), said_by);
  }

  /// param_shapes by flat group, in the order of the flat vectors.
  ShapeGroups shapes_of(const OptimizerFile& first) const {
    const auto& shapes = model_.param_shapes ? model_.param_shapes
                         : in_.shapes        ? in_.shapes
                                             : first.param_shapes;
    if (!shapes) {
      raise(ErrorCode::Corrupt,
            fmt::format("{}: no param_shapes: nothing tells what lies in the partitions",
                        model_.name));
    }
    if (first.stage == 3 && shapes->size() != first.groups.size())
      return regroup(*shapes, first.groups, world_size_, where_);
    return *shapes;
  }

  bool is_round_robin() const {
    return zero_setting(model_.config, "round_robin_gradients") == Json(true);
  }

  /// Parameters in their groups' own order, whatever order the flat vectors have.
  void add_parameters(const OptimizerFile& first, const ShapeGroups& shapes) {
    const bool is_reordered = first.stage != 3 && is_round_robin();
    std::vector<std::int32_t> group_of(shapes.size());
    for (std::size_t g = 0; g < shapes.size(); ++g) group_of[g] = static_cast<std::int32_t>(g);
    if (first.stage == 3) group_of = owners(first.members, shapes.size(), where_);
    for (std::size_t g = 0; g < shapes.size(); ++g) {
      const auto names = is_reordered ? undo_round_robin(shapes[g], world_size_) : shapes[g];
      for (const NamedShape& named : names) parameters_.add(named.fqn, named.shape, group_of[g]);
    }
  }

  /// Calls use(file, rank) for the file of each rank, as `arrange` changes those behind the first.
  template <class Use, class Arrange = std::identity>
  void for_each_rank(const OptimizerFile& first, Use&& use, Arrange&& arrange = {}) {
    for (const auto& [rank, path] : files_.optimizers) {
      if (rank == 0) {
        check_rank(first, first);
        use(first, rank);
        continue;
      }
      const OptimizerFile file = arrange(read_optimizer_file(open(path), notes_));
      check_rank(first, file);
      use(file, rank);
    }
  }

  /// Checks what all ranks of one save have in common.
  void check_rank(const OptimizerFile& first, const OptimizerFile& file) {
    const auto differ = [&](std::string_view what) {
      raise_two_saves(first.name, file.name, what);
    };
    if (file.stage != first.stage) differ("their ZeRO stages differ");
    if (file.version != first.version) differ("their DeepSpeed versions differ");
    if (file.groups.size() != first.groups.size()) {
      differ(
          fmt::format("they have {} and {} flat groups", first.groups.size(), file.groups.size()));
    }
    if (file.partition_counts != first.partition_counts) differ("their partition_count differs");
    if (file.gaps != first.gaps) differ("their param_alignment_paddings differ");
    for (std::size_t g = 0; g < file.groups.size(); ++g) {
      const auto& step = file.groups[g].step;
      if (step && first.groups[g].step && step != first.groups[g].step) {
        differ(fmt::format("the optimizer steps of group {} are {} and {}", g,
                           *first.groups[g].step, *step));
      }
      if (step) steps_.push_back(*step);
    }
    if (file.settings != first.settings) differ("the settings of their parameter groups differ");
  }

  /// Refuses optimizer files that contradict the whole module, and notes weights that differ: the
  /// program may have changed some after the step.
  void compare_with_module() {
    for (const ModuleFile& file : in_.module)
      check_against_masters(file, parameters_, in_.experts != nullptr, where_);
    const WeightComparison compared = compare_weights(model_.module, parameters_);
    const std::vector<std::string>& names = compared.differing;
    if (names.empty()) return;
    if (compared.is_of_another_save() && !files_.optimizers.empty()) raise_other_optimizer(names);
    const bool is_lost = std::ranges::any_of(
        names, [&](const std::string& name) { return !catalog().find(name, state::kWeights); });
    notes_.add(fmt::format(
        "{} parameters, first {}, are not in the module what the optimizer's fp32 "
        "copy rounds to: files of two saves, or weights changed after the last "
        "step{}",
        names.size(), unishard::quote(names.front()), is_lost ? "; the optimizer's are kept" : ""));
  }

  [[noreturn]] void raise_other_optimizer(const std::vector<std::string>& names) const {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: {} parameters, first {}, are not in the module what the optimizer's "
                      "fp32 copy rounds to, and none agrees: the optimizer's files are not of "
                      "this save",
                      where_, names.size(), unishard::quote(names.front())),
          fmt::format("find the optimizer files that belong to {}, or name that file itself to "
                      "read the module's weights alone",
                      model_.name));
  }

  /// Only the first rank of a run records second names.
  void take_aliases() {
    if (in_.aliases != nullptr) model_.aliases = *in_.aliases;
  }
  /// Returns "optimizer" or, of one of several ranks, "mp_rank_01 optimizer".
  std::string files_of(std::string_view kind) const {
    return in_.is_only ? std::string(kind) : fmt::format("{} {}", in_.name(), kind);
  }

  Storage& storage_;
  std::shared_ptr<FilePool> pool_;
  const RankInput& in_;
  const RankFiles& files_;
  std::string where_;
  std::uint64_t world_size_ = 1;
  bool has_optimizer_ = true;
  ModelFile model_;
  FrozenTable frozen_;
  ParameterTable parameters_;
  std::string unnamed_;  ///< a file that does not tell its name
  std::vector<std::int64_t> steps_;
  PiecedCatalog parts_;
  Notes& notes_;
};

}  // namespace

std::string RankInput::name() const { return fmt::format("mp_rank_{:02}", model_rank); }

void raise_two_saves(const std::string& a, const std::string& b, std::string_view what) {
  raise(ErrorCode::Corrupt, fmt::format("{} and {} are not of one save: {}", a, b, what),
        "use another checkpoint, or find the files that belong together");
}

void check_one_save(const RankContent& first, const RankContent& other) {
  const auto differ = [&](std::string_view what) {
    raise_two_saves(first.model_name, other.model_name, what);
  };
  const Catalog &a = first.parts.catalog, &b = other.parts.catalog;
  if (first.global_steps != other.global_steps)
    differ(fmt::format("global_steps are {} and {}", first.global_steps, other.global_steps));
  if (first.world_size != other.world_size) differ("dp_world_size differs");
  if (a.step != b.step) differ(fmt::format("the optimizer steps are {} and {}", a.step, b.step));
  if (a.stage != b.stage) differ("their ZeRO stages differ");
  if (a.producer != b.producer) differ("their DeepSpeed versions differ");
}

namespace {

/// Returns whether `other` has numbers or texts at its head that `first` has not; other values may
/// be those of a rank.
bool has_other_plain_values(const Json& first, const Json& other) {
  if (!other.is_object()) return false;
  return std::ranges::any_of(other.items(), [&](const auto& item) {
    const bool is_plain = item.value().is_number() || item.value().is_string();
    return is_plain &&
           (!first.is_object() || !first.contains(item.key()) || first[item.key()] != item.value());
  });
}

}  // namespace

void note_differing_facts(const RankContent& first, const RankContent& other, Notes& notes) {
  const Catalog &a = first.parts.catalog, &b = other.parts.catalog;
  const auto note = [&](std::string_view what) {
    notes.add(fmt::format("{} differs between {} and {}; that of the first is kept", what,
                          first.model_name, other.model_name));
  };
  if (a.scheduler != b.scheduler) note("lr_scheduler");
  if (a.config != b.config) note("ds_config");
  if (has_other_plain_values(a.client_state, b.client_state)) note("the client state");
}

RankContent read_rank(Storage& storage, const std::shared_ptr<FilePool>& pool,
                      const RankInput& input, Notes& notes) {
  return RankReader(storage, pool, input, notes).read();
}

}  // namespace unishard::converters::deepspeed
