// Number i after mp_rank_ is stage i / tensor degree, tensor-parallel rank i % tensor degree. The
// stages of one tensor-parallel rank are put together first, then the tensor-parallel ranks.
#include "formats/deepspeed/reader_pipeline.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include "containers/equal_elements.hpp"
#include "formats/deepspeed/model_file.hpp"
#include "formats/deepspeed/optimizer_file.hpp"
#include "formats/deepspeed/pipeline_layers.hpp"
#include "formats/deepspeed/rank_join.hpp"
#include "formats/deepspeed/stage_union.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>

namespace unishard::converters::deepspeed {
namespace {

constexpr const char* kUnnamed =
    "stage 0 of a pipeline stores states without names, and tied modules or frozen layers leave a "
    "choice of which layers are whose";
constexpr const char* kUnnamedWithoutLayers =
    "stage 0 of a pipeline stores states without names, and the optimizers list more parameters "
    "than the layers' files have";

/// Numbers the ranks of one tensor-parallel rank: a stage has `data_ranks` of them.
struct StageRanks {
  std::uint64_t tensor_degree = 1, data_ranks = 1;
  std::unordered_map<std::string, std::size_t> stage_of_layer;  ///< by path

  std::uint32_t operator()(const Path& file) const {
    const FileName name = parse_file_name(file.filename().string());
    const auto layer = stage_of_layer.find(file.string());
    const std::uint64_t stage =
        layer != stage_of_layer.end() ? layer->second : name.model_rank / tensor_degree;
    return static_cast<std::uint32_t>(stage * data_ranks + name.rank);
  }
};

class PipelineReader {
 public:
  PipelineReader(Storage& storage, const std::shared_ptr<FilePool>& pool, const TagFiles& files,
                 const TorchFile& first, MergeRules& rules)
      : storage_(storage),
        pool_(pool),
        files_(files),
        first_(first),
        rules_(rules),
        where_(files.folder.string()),
        degrees_(degrees_of(first)) {}

  std::unique_ptr<Source> read() {
    find_degrees();
    check_grid();
    auto source = tensors_ == 1 ? make_whole(read_tensor_rank(0)) : join_tensor_ranks();
    source->add_remarks(std::move(remarks_));
    return source;
  }

 private:
  std::unique_ptr<Source> join_tensor_ranks() {
    CutRules rules = rules_.cut_rules(first_, notes_);
    std::vector<RankContent> ranks;
    for (std::uint32_t t = 0; t < tensors_; ++t) ranks.push_back(read_tensor_rank(t));
    return join_ranks(std::move(ranks), rules, where_, notes_);
  }

  /// Takes the degrees from the files' names where the model file does not tell both.
  void find_degrees() {
    if (files_.layers.empty()) {
      raise(ErrorCode::Corrupt,
            fmt::format("{}: {}, and no file of a layer is here (layer_<number>-*model_states.pt): "
                        "the weights are lost",
                        where_, degrees_.text()),
            kFindStages);
    }
    if (!degrees_.has_layer_files) {
      raise(ErrorCode::Corrupt,
            fmt::format("{}: {} is left from another save, or {} is: that one has a whole module, "
                        "and no layers of a pipeline",
                        where_, unishard::quote(files_.layers.front().path.filename().string()),
                        first_.name()),
            "remove the file that the run that saved last did not write");
    }
    tensors_ = degrees_.is_told ? degrees_.tensor : files_.layers.back().name.model_rank + 1u;
    const std::uint64_t ranks =
        degrees_.is_told ? checked_ranks(degrees_.pipeline, degrees_.tensor) : degrees_.tensor;
    if (tensors_ == 0 || ranks == 0 || ranks % tensors_ != 0) {
      raise(ErrorCode::Corrupt,
            fmt::format("{}: {}, but the layers' files are of {} tensor-parallel ranks", where_,
                        degrees_.text(), tensors_));
    }
    stages_ = ranks / tensors_;
  }

  std::uint64_t checked_ranks(std::uint64_t pipeline, std::uint64_t tensor) const {
    const std::size_t files = files_.model_ranks.rbegin()->first + std::size_t{1};
    // More ranks than any file has the number of: the check of the grid names the missing ones.
    if (pipeline > limits::kWorldSize || tensor > limits::kWorldSize) {
      raise(ErrorCode::Corrupt, fmt::format("{}: {}, and the highest mp_rank here is {}", where_,
                                            degrees_.text(), files - 1));
    }
    return pipeline * tensor;
  }

  void check_grid() const {
    std::vector<std::pair<std::uint32_t, Path>> found;
    for (const auto& [rank, files] : files_.model_ranks) {
      if (files.model || !files.optimizers.empty() || !files.rank_models.empty())
        found.emplace_back(rank, files_.folder);
    }
    check_complete(files_.folder, found, stages_ * tensors_, "mp_rank",
                   degrees_.is_told ? "checkpoint_parallel_dimensions" : "mp_world_size");
    for (const auto& [rank, files] : files_.model_ranks) {
      if (files.model) continue;
      raise(ErrorCode::Corrupt,
            fmt::format("{}: mp_rank_{:02}_model_states.pt is missing: nothing tells what is in "
                        "stage {}",
                        where_, rank, rank / tensors_),
            kFindStages);
    }
    check_layers();
  }

  /// Checks that every tensor-parallel rank has the same layers.
  void check_layers() const {
    std::map<std::uint32_t, std::set<std::uint32_t>> ranks_of;
    for (const NumberedFile& file : files_.layers) {
      if (file.name.model_rank >= tensors_) {
        raise(ErrorCode::Corrupt,
              fmt::format("{}: {} is of tensor-parallel rank {}, but {}: it is left from another "
                          "save",
                          where_, unishard::quote(file.path.filename().string()),
                          file.name.model_rank, degrees_.text()),
              "remove it, if the run that saved last had fewer ranks");
      }
      ranks_of[file.name.layer].insert(file.name.model_rank);
    }
    for (const auto& [layer, ranks] : ranks_of) {
      if (ranks.size() == tensors_) continue;
      raise(ErrorCode::Corrupt,
            fmt::format("{}: layer {} has files of the tensor-parallel ranks {} only, of {}: its "
                        "other parts are lost",
                        where_, layer, fmt::join(ranks, ", "), tensors_),
            kFindStages);
    }
  }

  std::unique_ptr<Source> make_whole(RankContent content) {
    PiecedCatalog& parts = content.parts;
    keep_cut_patterns(parts.catalog, nullptr);
    parts.notes = notes_.lines();
    parts.losses = notes_.losses();
    return make_pieced_source(std::move(parts), where_);
  }

  RankContent read_tensor_rank(std::uint32_t tensor_rank) {
    std::vector<StageFacts> facts;
    for (std::uint64_t stage = 0; stage < stages_; ++stage)
      facts.push_back(read_facts(model_rank(stage, tensor_rank)));
    check_facts(facts);
    std::vector<ModuleFile> layers = read_layers(tensor_rank);
    if (facts.front().groups) {
      const auto assigned = assign_layers(std::move(layers), facts, where_, notes_);
      if (tensor_rank == 0) remark_tied_modules(tied_modules_without_layer(facts, assigned));
      return read_stages(tensor_rank, facts, assigned, {});
    }
    check_told_layers(layers, facts, where_);
    compare_with_states(layers, facts);
    const auto stage_of = count_off_layers(layers, facts);
    const auto stages = stage_of ? *stage_of : stages_by_buffers(layers, facts);
    const auto placed = place_layers(std::move(layers), stages, stages_);
    if (stage_of) {
      if (auto content = try_stages(tensor_rank, facts, placed)) return *std::move(content);
    }
    return read_stages(tensor_rank, facts, placed,
                       lacks_listed_ ? kUnnamedWithoutLayers : kUnnamed);
  }

  void remark_tied_modules(const std::vector<std::string>& names) {
    if (names.empty()) return;
    remarks_.push_back(
        fmt::format("no layer's file has {}, whose masters are read: all layers of the tied module "
                    "have a forward_fn, or a file is missing",
                    fmt::join(names, ", ")));
  }

  /// Compares the parameters of the layers with those that the optimizer has states of, which
  /// tell no names.
  void compare_with_states(const std::vector<ModuleFile>& layers,
                           const std::vector<StageFacts>& facts) {
    const std::vector<std::vector<Shape>> shapes = parameter_shapes(layers, facts);
    std::vector<std::vector<UnnamedState>> states;
    std::uint64_t held = 0, trained = 0, with_states = 0;
    std::uint64_t held_elements = 0, flat_elements = 0;  // each has bytes in a file
    for (const StageFacts& stage : facts) {
      states.push_back(stage.states);
      with_states += stage.states.size();
      trained += stage.parameters;
      flat_elements += stage.elements;
    }
    for (const auto& layer : shapes) {
      held += layer.size();
      for (const Shape& shape : layer) held_elements += element_count(shape);
    }
    const StateBalance balance = balance_states(states, shapes, repeated_parameters(layers, facts));
    std::uint64_t own = held, own_elements = held_elements;  // without copies of tied modules
    if (stages_ == 1) {                                      // else each stage lists its copy
      own -= balance.copies.size();
      for (const Shape& copy : balance.copies) own_elements -= element_count(copy);
    }
    if (balance.absent > 0) {
      lose_absent_weights(fmt::format("{} trained parameters", balance.absent));
    } else if (flat_elements > held_elements) {
      lose_absent_weights(fmt::format("{} trained elements", flat_elements - held_elements));
    } else if (with_states == 0 && flat_elements == 0 && trained > held) {
      tell_listed_weights(layers, shapes, trained - held);
    }
    if (flat_elements > 0) {
      if (own_elements > flat_elements)
        doubt_further_layers(own_elements - flat_elements, "elements");
    } else if (trained > 0) {
      const std::uint64_t further = with_states == trained ? balance.further : 0;
      doubt_further_layers(std::max(further, own > trained ? own - trained : 0), "parameters");
    }
  }

  /// The optimizers list `absent` parameters more than the layers have, and have no states that
  /// would tell which of them are those of a tied module, which several stages list.
  void tell_listed_weights(const std::vector<ModuleFile>& layers,
                           const std::vector<std::vector<Shape>>& shapes, std::uint64_t absent) {
    lacks_listed_ = true;
    if (const auto layer = layer_missing_in_kind(layers, shapes, absent)) {
      return notes_.lose({Role::Weight, fmt::format("{} trained parameters", absent),
                          fmt::format("the optimizers list them, and no layer's file has them: the "
                                      "file of layer {} is missing, between layers of one kind",
                                      *layer)});
    }
    notes_.add(
        fmt::format("the optimizers list {} parameters more than the layers' files have: a file is "
                    "missing, or several stages list a tied module",
                    absent));
  }

  /// Returns the first layer without a file between two layers with the same tensors, where
  /// `absent` parameters are as many as the layers between them would have.
  static std::optional<std::uint32_t> layer_missing_in_kind(
      const std::vector<ModuleFile>& layers, const std::vector<std::vector<Shape>>& shapes,
      std::uint64_t absent) {
    for (std::size_t i = 1; i < layers.size(); ++i) {
      const std::uint32_t last = layers[i - 1].numbers.layer, next = layers[i].numbers.layer;
      const std::uint64_t between = next - last - 1;
      if (between > 0 && !shapes[i].empty() && absent / between >= shapes[i].size() &&
          has_same_tensors(layers[i - 1], layers[i]))
        return last + 1;
    }
    return std::nullopt;
  }

  static bool has_same_tensors(const ModuleFile& one, const ModuleFile& other) {
    return std::ranges::equal(one.entries, other.entries,
                              [](const NamedView& a, const NamedView& b) {
                                return a.name == b.name && a.view.shape == b.view.shape;
                              });
  }

  /// A file is missing, or no layer has one of a tied module.
  void lose_absent_weights(std::string what) {
    lacks_listed_ = true;
    notes_.lose({Role::Weight, std::move(what),
                 "the optimizer has their states, and no layer's file has them: a file is missing, "
                 "or all layers of a tied module have a forward_fn"});
  }

  void doubt_further_layers(std::uint64_t count, std::string_view of) {
    if (count == 0) return;
    notes_.add(
        fmt::format("{} {} of the layers have no states in the optimizer: they are frozen, or "
                    "another save of this tag left their files",
                    count, of));
  }

  std::uint32_t model_rank(std::uint64_t stage, std::uint32_t tensor_rank) const {
    return static_cast<std::uint32_t>(stage * tensors_ + tensor_rank);
  }

  std::vector<ModuleFile> read_layers(std::uint32_t tensor_rank) {
    std::vector<ModuleFile> layers;
    for (const NumberedFile& file : files_.layers) {
      if (file.name.model_rank == tensor_rank)
        layers.push_back(read_module_file(pool_, file, notes_));
    }
    doubt_other_types(layers);
    doubt_odd_layers(layers, notes_);
    return layers;
  }

  /// Notes a layer whose tensor has another floating-point type than the tensor of that name in
  /// another layer: a run has one type.
  void doubt_other_types(const std::vector<ModuleFile>& layers) {
    std::map<std::string_view, std::pair<DType, const ModuleFile*>> first;  // by local name
    for (const ModuleFile& layer : layers) {
      for (const NamedView& entry : layer.entries) {
        const DType dtype = entry.view.dtype;
        if (info(dtype).kind != unishard::Kind::Float) continue;
        const auto [place, is_new] = first.try_emplace(entry.name, dtype, &layer);
        const auto& [known, other] = place->second;
        if (is_new || known == dtype) continue;
        notes_.add(fmt::format(
            "{} is {} in {} and {} in {}: another save of this tag may have left one of them",
            unishard::quote(entry.name), name_of(known), file_name(*other), name_of(dtype),
            file_name(layer)));
        return;
      }
    }
  }

  StageFacts read_facts(std::uint32_t rank) {
    const RankFiles& files = files_.model_ranks.at(rank);
    const TorchFile file = open_rank_file(pool_, *files.model);
    const ModelFile model = read_parallel_model_file(file, notes_);
    StageFacts facts;
    facts.file = model.name;
    facts.buffers = model.buffer_names.value_or(std::vector<std::string>());
    facts.tells_buffers = model.buffer_names.has_value();
    if (model.param_shapes) {
      facts.groups = told_by_shapes(*model.param_shapes);
      facts.has_shapes = true;
    } else if (!files.optimizers.empty()) {
      facts.groups = told_by_slices(files);
    } else if (const auto optimizer = present(file.root(), "optimizer")) {
      count_states(file, *optimizer, facts);
    }
    return facts;
  }

  static std::vector<std::vector<ToldParameter>> told_by_shapes(const ShapeGroups& shapes) {
    std::vector<std::vector<ToldParameter>> groups;
    for (const auto& group : shapes) {
      auto& told = groups.emplace_back();
      for (const NamedShape& named : group)
        told.push_back({named.fqn, named.shape, element_count(named.shape)});
    }
    return groups;
  }

  /// The optimizer files of stage 0 tell names and sizes of the parameters in each partition.
  std::vector<std::vector<ToldParameter>> told_by_slices(const RankFiles& files) {
    std::vector<std::vector<ToldParameter>> groups;
    for (const auto& [rank, path] : files.optimizers) {
      OptimizerFile file = read_optimizer_file(open_rank_file(pool_, path), notes_);
      if (file.slices.size() != file.groups.size() ||
          (rank != files.optimizers.front().first && file.slices.size() != groups.size())) {
        raise(ErrorCode::Unsupported,
              fmt::format("{}: no param_shapes and no param_slice_mappings of every group: nothing "
                          "tells what lies in the partitions",
                          file.name));
      }
      groups.resize(file.slices.size());
      for (std::size_t g = 0; g < groups.size(); ++g)
        add_slices(std::move(file.slices[g]), groups[g], file.name);
    }
    return groups;
  }

  static void add_slices(std::vector<FlatSlice> slices, std::vector<ToldParameter>& told,
                         const std::string& file) {
    std::ranges::stable_sort(slices, {}, &FlatSlice::begin);
    for (const FlatSlice& slice : slices) {
      if (told.empty() || told.back().fqn != slice.fqn) told.push_back({slice.fqn, {}, 0});
      if (slice.elements > std::numeric_limits<std::uint64_t>::max() - told.back().elements)
        raise(ErrorCode::Corrupt, fmt::format("{}: {} has too many elements", file, slice.fqn));
      told.back().elements += slice.elements;
    }
  }

  void count_states(const TorchFile& file, Value optimizer, StageFacts& facts) {
    const auto wrapped = present(optimizer, "optimizer_state_dict");
    const Value base = wrapped ? *wrapped : optimizer;
    std::vector<std::vector<std::uint64_t>> members;
    read_group_settings(file, base.at("param_groups"), members, notes_);
    for (const auto& group : members) {
      facts.parameters += group.size();
      for (const std::uint64_t index : group) add_state(file, base.at("state"), index, facts);
    }
    const auto flat = present(optimizer, "fp32_groups_flat");
    for (std::size_t g = 0; flat && g < flat->size(); ++g)
      facts.elements += tensor_of(file, (*flat)[g], "fp32_groups_flat").elements();
  }

  /// Adds the beginning of the first state that has the shape of a parameter.
  void add_state(const TorchFile& file, Value states, std::uint64_t index, StageFacts& facts) {
    constexpr std::uint64_t kCompared = 64;
    const auto entries = state_of(states, index);
    if (!entries) return;
    std::vector<FlatState> read;
    std::optional<std::int64_t> step;
    Notes unused;  // the states are read again
    read_states(file, *entries, std::nullopt, read, step, unused);
    if (read.empty()) return;
    const TensorView& view = read.front().view;
    const std::uint64_t count = std::min(kCompared, view.elements());
    UnnamedState state{view.shape, std::vector<std::byte>(count * size_of(view.dtype))};
    if (view.storage) state.first = sampled_bytes(view, 0, count);
    facts.states.push_back(std::move(state));
  }

  /// Checks that all stages tell the same way, or none.
  static void check_facts(const std::vector<StageFacts>& facts) {
    for (const StageFacts& stage : facts) {
      if (stage.groups.has_value() != facts.front().groups.has_value())
        raise_two_saves(facts.front().file, stage.file, "only one has param_shapes");
    }
  }

  /// Reads the states without names; nullopt when those of a stage cannot be named.
  std::optional<RankContent> try_stages(std::uint32_t tensor_rank,
                                        const std::vector<StageFacts>& facts,
                                        const std::vector<std::vector<ModuleFile>>& layers) {
    std::vector<RankContent> stages = contents(tensor_rank, facts, layers, {});
    const auto has_states = [](const RankContent& stage) { return stage.has_optimizer; };
    const auto known = std::ranges::count_if(stages, has_states);
    if (known != 0 && known != std::ssize(stages)) return std::nullopt;
    return unite(std::move(stages), layers);
  }

  RankContent read_stages(std::uint32_t tensor_rank, const std::vector<StageFacts>& facts,
                          const std::vector<std::vector<ModuleFile>>& layers,
                          const std::optional<std::string>& unnamed) {
    return unite(contents(tensor_rank, facts, layers, unnamed), layers);
  }

  std::vector<RankContent> contents(std::uint32_t tensor_rank, const std::vector<StageFacts>& facts,
                                    const std::vector<std::vector<ModuleFile>>& layers,
                                    const std::optional<std::string>& unnamed) {
    std::vector<RankContent> stages;
    for (std::uint64_t stage = 0; stage < stages_; ++stage) {
      const std::uint32_t rank = model_rank(stage, tensor_rank);
      RankInput input{files_.folder, files_.model_ranks.at(rank), rank, false};
      input.has_whole_tensors = tensors_ == 1;
      input.module = layers[stage];
      input.unnamed_states = unnamed;
      if (facts[stage].groups && !facts[stage].has_shapes)
        input.shapes = shapes_of_stage(facts[stage], layers);
      stages.push_back(read_rank(storage_, pool_, input, notes_));
    }
    return stages;
  }

  RankContent unite(std::vector<RankContent> stages,
                    const std::vector<std::vector<ModuleFile>>& layers) const {
    StageRanks ranks{tensors_, stages.front().world_size, {}};
    for (std::size_t stage = 0; stage < layers.size(); ++stage) {
      for (const ModuleFile& layer : layers[stage]) ranks.stage_of_layer.emplace(layer.name, stage);
    }
    RankContent content = unite_stages(std::move(stages));
    content.parts.rank_of_file = std::move(ranks);
    return content;
  }

  Storage& storage_;
  const std::shared_ptr<FilePool>& pool_;
  const TagFiles& files_;
  const TorchFile& first_;
  MergeRules& rules_;
  const std::string where_;
  ParallelDegrees degrees_;
  std::uint64_t stages_ = 1, tensors_ = 1;
  std::vector<std::string> remarks_;
  bool lacks_listed_ = false;  ///< the layers lack parameters that the optimizers list
  Notes notes_;
};

}  // namespace

std::unique_ptr<Source> read_pipeline(Storage& storage, const std::shared_ptr<FilePool>& pool,
                                      const TagFiles& files, const TorchFile& first,
                                      MergeRules& rules) {
  return PipelineReader(storage, pool, files, first, rules).read();
}

}  // namespace unishard::converters::deepspeed
