#include "formats/megatron_parts.hpp"

#include "unishard/converters/extra_state.hpp"
#include "unishard/converters/optimizer_scalars.hpp"
#include "unishard/format/error.hpp"

#include "containers/joined_source.hpp"
#include "containers/torch_file.hpp"
#include "core/forwarding_source.hpp"
#include "core/model_tensors.hpp"
#include "formats/cut_files.hpp"
#include "formats/dcp/megatron.hpp"
#include "formats/gpt_tensors.hpp"
#include "formats/megatron_run.hpp"
#include "formats/megatron_states.hpp"
#include "formats/named_cuts.hpp"
#include "reading/completeness.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unishard::converters {
namespace {

struct MegatronTensor {
  std::string_view name;  ///< in a layer, or the whole name
  NamedCut cut = NamedCut::Whole;
};
/// Each is a beginning: `.weight` and `.bias` follow it. The bias of a layer that is cut in columns
/// is whole.
constexpr std::array<MegatronTensor, 17> kMegatronLayers = {{
    {"input_layernorm.", NamedCut::Whole},
    {"pre_mlp_layernorm.", NamedCut::Whole},
    {"self_attention.linear_qkv.layer_norm_", NamedCut::Whole},
    {"self_attention.linear_qkv.", NamedCut::Rows},
    {"self_attention.q_layernorm.", NamedCut::Whole},
    {"self_attention.k_layernorm.", NamedCut::Whole},
    {"self_attention.linear_proj.", NamedCut::Columns},
    {"mlp.linear_fc1.layer_norm_", NamedCut::Whole},
    {"mlp.linear_fc1.", NamedCut::TwoHalves},
    {"mlp.linear_fc2.", NamedCut::Columns},
    // Before Megatron-Core.
    {"post_attention_layernorm.", NamedCut::Whole},
    {"self_attention.query_key_value.", NamedCut::Rows},
    {"self_attention.dense.", NamedCut::Columns},
    {"mlp.dense_h_to_4h.", NamedCut::TwoHalves},
    {"mlp.dense_4h_to_h.", NamedCut::Columns},
    {"input_norm.", NamedCut::Whole},
    {"post_attention_norm.", NamedCut::Whole},
}};
constexpr std::array<std::string_view, 3> kLayersOf = {
    "decoder.layers.", "language_model.encoder.layers.", "language_model.transformer.layers."};
constexpr std::array<MegatronTensor, 11> kMegatronOutside = {{
    {"embedding.word_embeddings.", NamedCut::Vocabulary},
    {"embedding.position_embeddings.", NamedCut::Whole},
    {"decoder.final_layernorm.", NamedCut::Whole},
    {"output_layer.", NamedCut::Vocabulary},
    {"language_model.embedding.word_embeddings.", NamedCut::Vocabulary},
    {"language_model.embedding.position_embeddings.", NamedCut::Whole},
    {"language_model.encoder.final_layernorm.", NamedCut::Whole},
    {"language_model.transformer.final_layernorm.", NamedCut::Whole},
    {"language_model.encoder.final_norm.", NamedCut::Whole},
    {"language_model.output_layer.", NamedCut::Vocabulary},
    {"word_embeddings_for_head.", NamedCut::Vocabulary},
}};
/// Copies of the embedding on the last stage, and what they are copies of.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kTied = {
    {{"output_layer.weight", "embedding.word_embeddings.weight"},
     {"word_embeddings_for_head.weight", "language_model.embedding.word_embeddings.weight"}}};

std::optional<NamedCut> find_cut(std::span<const MegatronTensor> table, std::string_view name) {
  const auto known = std::ranges::find_if(
      table, [&](const MegatronTensor& tensor) { return name.starts_with(tensor.name); });
  if (known == table.end()) return std::nullopt;
  const std::string_view end = name.substr(known->name.size());
  if (end != "weight" && end != "bias") return std::nullopt;
  const bool is_whole = end == "bias" && known->cut == NamedCut::Columns;
  return is_whole ? NamedCut::Whole : known->cut;
}

/// A part whose file has no optimizer, so that its reader takes all of it for a model. The model
/// is below "model.", in dicts of dicts.
class NestedModel final : public ForwardingSource {
 public:
  explicit NestedModel(std::unique_ptr<Source> part)
      : ForwardingSource(std::move(part)), catalog_(source().catalog()) {
    for (TensorInfo& tensor : catalog_.tensors) {
      if (tensor.fqn.starts_with(kRoot))
        tensor.fqn.erase(0, kRoot.size());
      else
        tensor.state = kExtraState;
    }
    for (Alias& alias : catalog_.aliases) {
      for (std::string* name : {&alias.fqn, &alias.target})
        if (name->starts_with(kRoot)) name->erase(0, kRoot.size());
    }
  }
  static bool is_one(const Catalog& catalog) {
    return std::ranges::any_of(catalog.tensors, [](const TensorInfo& tensor) {
      return tensor.fqn.starts_with("model.language_model.");
    });
  }

  const Catalog& catalog() const override { return catalog_; }
  std::uint64_t read_boundary(std::size_t tensor, std::uint64_t element) const override {
    return source().read_boundary(tensor, element);
  }
  bool is_in_order(std::size_t tensor) const override { return source().is_in_order(tensor); }
  std::vector<StoredRange> stored_ranges(std::size_t tensor) const override {
    return source().stored_ranges(tensor);
  }

 private:
  static constexpr std::string_view kRoot = "model.";

  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    source().read(tensor, range, out);
  }

  Catalog catalog_;
};

class MegatronParts {
 public:
  MegatronParts(Storage& storage, const Path& folder) : storage_(storage), folder_(folder) {}

  /// Returns false where there are no ranks' files, or where they say nothing of the run.
  bool find() {
    if (!find_ranks()) return false;
    const auto file = read_arguments(files_.begin()->second);
    if (file) run_ = file->first;
    return file.has_value();
  }

  std::unique_ptr<Source> open() {
    if (!find()) return nullptr;
    require_grid();
    for (const auto& [rank, path] : files_) {
      const auto file = read_arguments(path);
      if (!file || file->first != run_)
        refuse(fmt::format("{} and {} have different arguments of the run: they are of two runs",
                           files_.begin()->second.string(), path.string()));
      require_place(rank, file->second, path);
    }
    open_states();
    std::vector<std::unique_ptr<Source>> stages;
    for (std::uint64_t stage = 0; stage < run_.stages; ++stage) stages.push_back(open_stage(stage));
    return join(std::move(stages));
  }

 private:
  using Rank = std::pair<std::uint64_t, std::uint64_t>;  // stage, tensor-parallel rank

  bool find_ranks() {
    std::vector<std::string> names;
    for (const Entry& entry : storage_.list(folder_)) {
      if (entry.kind == EntryKind::Directory && entry.name.starts_with(kRankFolderName))
        names.push_back(entry.name);
    }
    for (const std::string& name : names) {
      const auto part = parse_part_name(name);
      if (!part) continue;
      if (part->numbers.size() > 2) {
        raise(ErrorCode::Unsupported,
              fmt::format("{}: {} is of experts as well, which are not put together",
                          folder_.string(), quote(name)),
              "save it with --ckpt-format torch_dist");
      }
      const std::uint64_t stage = part->numbers.size() == 2 ? part->numbers[1] : 0;
      const auto file = find_rank_file(storage_, folder_ / name);
      if (!file) continue;
      if (!files_.emplace(Rank{stage, part->numbers[0]}, *file).second)
        refuse(fmt::format("{} is the second folder of one rank", quote(name)));
    }
    return !files_.empty();
  }

  /// Returns nullopt for files without arguments.
  std::optional<std::pair<MegatronRun, MegatronProcess>> read_arguments(const Path& path) const {
    const torch::TorchFile file(torch::whole_file(storage_, path));
    auto found = read_megatron_run(file.root());
    if (found) require_readable(found->first, file.root());
    return found;
  }

  /// Tensor-parallel ranks are next to each other, and stages as far from each other as possible.
  void require_place(const Rank& place, const MegatronProcess& saved, const Path& path) const {
    if (!saved.rank) return;
    const auto [stage, tensor_rank] = place;
    const std::uint64_t ranks_of_stage = saved.world_size.value_or(0) / run_.stages;
    const bool knows_stage = ranks_of_stage > 0 && !saved.has_stages_inside;
    if (*saved.rank % run_.tensor_ranks == tensor_rank &&
        (!knows_stage || *saved.rank / ranks_of_stage == stage))
      return;
    refuse(
        fmt::format("{} says that rank {} saved it, whose file that is not: it is in another's "
                    "place",
                    path.string(), *saved.rank));
  }

  void require_readable(const MegatronRun& run, torch::Value root) const {
    const auto version = root.find("checkpoint_version");
    if (!version || version->real() != 3.0)
      unsupported(
          "their checkpoint_version is not 3, and other ones order the rows of attention in "
          "another way");
    if (run.virtual_stages > 1)
      unsupported("they have virtual stages (virtual_pipeline_model_parallel_size)");
    if (run.has_experts) unsupported("they have experts (num_experts)");
    if (run.tensor_ranks == 0 || run.stages == 0 || run.layers == 0)
      unsupported("their arguments lack num_layers, or have no ranks");
    if (run.heads_of_keys % run.tensor_ranks != 0)
      unsupported("several tensor-parallel ranks have the same heads of keys (num_query_groups)");
  }

  void require_grid() const {
    for (std::uint64_t stage = 0; stage < run_.stages; ++stage) {
      for (std::uint64_t rank = 0; rank < run_.tensor_ranks; ++rank) {
        if (files_.contains({stage, rank})) continue;
        refuse(fmt::format(
            "the file of tensor-parallel rank {} of stage {} is missing ({}{:02}_{:03}), "
            "and with it its part of the layers",
            rank, stage, kRankFolderName, rank, stage));
      }
    }
    if (files_.size() > run_.stages * run_.tensor_ranks)
      refuse(
          fmt::format("there are files of {} ranks, and the run had {} tensor-parallel ranks and "
                      "{} stages: some are left from another save",
                      files_.size(), run_.tensor_ranks, run_.stages));
  }

  /// Opens all files with the states of their optimizers, if all have such that have names.
  void open_states() {
    std::optional<Path> without;
    for (const auto& [rank, path] : files_) {
      const Catalog* first = named_.empty() ? nullptr : &named_.begin()->second->catalog();
      MegatronStates states = open_with_states(storage_, path, first);
      if (!states.why_not.empty()) {
        why_no_states_ = fmt::format("{}: {}", path.string(), states.why_not);
        return named_.clear();
      }
      has_lone_schedule_ |= states.has_lone_schedule;
      if (states.part == nullptr) {
        without = path;
        continue;
      }
      left_out_.merge(states.left_out);
      const auto [named, is_new] = named_.emplace(rank, std::move(states.part));
      const Catalog& leader = named_.at({rank.first, 0})->catalog();
      if (std::string why = find_different_value(leader, named->second->catalog()); !why.empty()) {
        why_no_states_ = fmt::format("{}: {}", path.string(), why);
        return named_.clear();
      }
    }
    if (without && !named_.empty())
      why_no_states_ = fmt::format("{} has no optimizer, and others have one", without->string());
    if (without) named_.clear();
  }

  /// The distributed optimizer has files of its own, whose buckets name no parameters. Returns
  /// whether the run had one.
  bool lose_distributed_optimizer(deepspeed::Notes& notes) {
    for (const auto& [rank, path] : files_) {
      const Path folder = path.parent_path();
      std::string name = "distrib_optim.pt", why;
      if (storage_.kind(folder / name) != EntryKind::File &&
          storage_.kind(folder / "optim.pt") == EntryKind::File)
        name = "optim.pt";
      if (storage_.kind(folder / name) == EntryKind::File)
        why = "and those of other ranks are not read: they hold buckets, which name no parameters";
      else if (run_.has_distributed_optimizer && has_optimizer(path))
        why = "is missing, in which a distributed optimizer has its states";
      else
        continue;
      why = fmt::format("{} {}", (folder / name).string(), why);
      notes.add(fmt::format("the fp32 masters of the weights are not read: {}", why));
      notes.lose({Role::Optimizer, "optimizer", std::move(why)});
      return true;
    }
    return false;
  }

  /// The reason is said for the first stage.
  void say_why_no_states(deepspeed::Notes& notes) {
    const std::string why = std::exchange(why_no_states_, {});
    if (why.empty()) return;
    notes.add(
        fmt::format("the optimizer's states, and fp32 masters among them, are not read: {}", why));
    if (std::ranges::count(notes.losses(), Role::Optimizer, &Loss::role) == 0)
      notes.lose({Role::Optimizer, "optimizer", why});
  }

  bool has_optimizer(const Path& file) const {
    const torch::TorchFile archive(torch::whole_file(storage_, file));
    const auto found = archive.root().find("optimizer");
    return found && !found->is_none();
  }

  deepspeed::CutParts named_parts(std::uint64_t stage, const std::vector<Path>& paths,
                                  deepspeed::Notes& notes) {
    deepspeed::CutParts parts{.format = "torch", .world_size = paths.size()};
    for (std::uint64_t rank = 0; rank < run_.tensor_ranks; ++rank) {
      parts.names.push_back(paths[rank].string());
      parts.sources.push_back(std::move(named_.at({stage, rank})));
      for (const Loss& loss : parts.sources.back()->losses()) {
        if (told_.emplace(loss.role, loss.name).second) notes.lose(loss);
      }
    }
    for (const std::string& name : std::exchange(left_out_, {}))
      notes.lose({Role::ClientValue, name,
                  "each part has one of its ranks, and they are not put together"});
    return parts;
  }

  std::unique_ptr<Source> open_stage(std::uint64_t stage) {
    std::vector<Path> paths;
    for (std::uint64_t rank = 0; rank < run_.tensor_ranks; ++rank)
      paths.push_back(files_.at({stage, rank}));
    deepspeed::Notes notes;
    deepspeed::CutParts parts = has_states()
                                    ? named_parts(stage, paths, notes)
                                    : open_cut_files(storage_, paths, notes, why_no_states_);
    const bool is_told = stage == 0 && !has_states() && lose_distributed_optimizer(notes);
    if (is_told) why_no_states_.clear();
    if (is_told) has_lone_schedule_ = false;
    const bool is_nested = NestedModel::is_one(parts.sources.front()->catalog());
    for (std::unique_ptr<Source>& part : parts.sources)
      if (is_nested) part = std::make_unique<NestedModel>(std::move(part));
    if (is_nested) lose_states(*parts.sources.front(), notes);
    say_why_no_states(notes);
    for (std::size_t rank = 0; rank < paths.size(); ++rank)
      require_one_save(parts.sources[rank]->catalog(), paths[rank]);
    parts.left_out = kModuleState;
    const Catalog& first = parts.sources.front()->catalog();
    const bool is_gated = run_.is_gated || has_gates(first);
    std::map<std::string, NamedCut> cuts;
    for (const TensorInfo& tensor : first.tensors) {
      if (is_of_model(tensor) && !tensor.fqn.ends_with(kModuleState))
        cuts.emplace(tensor.fqn, cut_of(tensor.fqn, is_gated));
    }
    if (!unequal_part(parts)) require_described(first);
    return join_by_names(std::move(parts), cut_patterns(cuts, run_.vocabulary), folder_.string(),
                         notes);
  }

  void require_one_save(const Catalog& catalog, const Path& file) {
    constexpr const char* kIteration = "iteration";
    const Json& client = catalog.client_state;
    const Json saved = client.is_object() ? client.value(kIteration, Json()) : Json();
    if (!iteration_) iteration_ = saved;
    if (*iteration_ == saved) return;
    refuse(fmt::format("{} is of iteration {}, and {} of {}: they are of two saves", file.string(),
                       saved.dump(), files_.begin()->second.string(), iteration_->dump()));
  }

  void require_described(const Catalog& part) const {
    if (const auto contradiction = find_contradiction(part, run_))
      refuse(
          fmt::format("the arguments of the run do not describe its tensors: {}", *contradiction));
  }

  NamedCut cut_of(const std::string& name, bool is_gated) const {
    const auto layer = parse_layer_name(name);
    const bool is_in_layer = layer && std::ranges::count(kLayersOf, layer->before) > 0;
    const auto cut =
        is_in_layer ? find_cut(kMegatronLayers, layer->local) : find_cut(kMegatronOutside, name);
    if (!cut)
      unsupported(
          fmt::format("{} is no tensor of a GPT, whose names tell how they are cut", quote(name)));
    if (*cut == NamedCut::TwoHalves && !is_gated) return NamedCut::Rows;
    if (*cut == NamedCut::Vocabulary && !run_.vocabulary) return NamedCut::Rows;
    return *cut;
  }

  /// Puts the stages one behind the other. A tied embedding is a tensor with two copies, which
  /// every read compares.
  std::unique_ptr<Source> join(std::vector<std::unique_ptr<Source>> stages) {
    JoinedCatalog out;
    out.format = "torch";
    out.catalog = stages.front()->catalog();
    begin(out.catalog);
    out.shards_are = "stages";
    // Rules of the user's put tensor-parallel parts of one stage together.
    if (stages.size() == 1) out.cut_rules = stages.front()->cut_rules();
    std::uint64_t layers = 0;
    for (std::uint32_t s = 0; s < stages.size(); ++s) {
      layers += add_stage(stages[s]->catalog(), s, layers, out);
      for (const Loss& loss : stages[s]->losses()) {
        if (told_.emplace(loss.role, loss.name).second) out.losses.push_back(loss);
      }
      for (const std::string& remark : stages[s]->remarks()) out.remarks.push_back(remark);
      for (const std::string& note : stages[s]->notes()) out.notes.push_back(note);
    }
    if (layers != run_.layers)
      refuse(fmt::format("the stages have {} layers together, and num_layers is {}", layers,
                         run_.layers));
    require_whole(out.catalog);
    if (const auto wrong = find_wrong_shape(out.catalog, run_)) refuse(*wrong);
    remark_on_iteration(out.remarks);
    remark_on_steps(out.catalog, out.remarks);
    if (has_lone_schedule_)
      out.remarks.push_back(
          "the files have the schedule of an optimizer (opt_param_scheduler), and no optimizer");
    for (std::vector<SharedBox>& boxes : boxes_) {
      JoinedTensor tensor{std::vector<std::size_t>(stages.size(), 0), nullptr};
      for (const SharedBox::Copy& copy : boxes.front().copies)
        tensor.tensors[copy.shard] = numbers_.at({out.tensors.size(), copy.shard});
      if (boxes.front().whole.elements() == 0) boxes.clear();
      tensor.boxes = std::make_shared<const std::vector<SharedBox>>(std::move(boxes));
      out.tensors.push_back(std::move(tensor));
    }
    return make_joined_source(std::move(out), std::move(stages), folder_.string());
  }

  void require_whole(const Catalog& catalog) const {
    std::set<std::string> names;
    for (const TensorInfo& tensor : catalog.tensors) names.insert(tensor.fqn);
    const std::vector<std::string> missing = missing_gpt_tensors(names, layers_of_, run_);
    if (!missing.empty())
      raise(ErrorCode::Corrupt,
            fmt::format("{}: {} tensors of the model are in no file, {} first", folder_.string(),
                        missing.size(), quote(missing.front())),
            "use another copy of the files");
  }

  void remark_on_iteration(std::vector<std::string>& remarks) const {
    const auto expected = dcp::iteration_of(folder_);
    if (expected && iteration_ && iteration_->is_number() && *iteration_ != *expected)
      remarks.push_back(
          fmt::format("the files say iteration {}, and the folder is {}: they may be "
                      "another save's",
                      iteration_->dump(), folder_.filename().string()));
  }

  /// An optimizer skips steps where gradients overflow, and never makes more than one of an
  /// iteration. That of Transformer Engine counts the steps of a group.
  void remark_on_steps(const Catalog& catalog, std::vector<std::string>& remarks) const {
    if (!has_states() || !iteration_ || !iteration_->is_number()) return;
    double steps = static_cast<double>(catalog.step);
    for (const Json& group : catalog.groups) {
      const Json counted = group.value("step", Json());
      if (counted.is_number()) steps = std::max(steps, counted.get<double>());
    }
    const double iteration = iteration_->get<double>();
    const bool has_moments =
        std::ranges::count(catalog.tensors, state::kExpAvgSq, &TensorInfo::state) > 0;
    if (steps > iteration)
      remarks.push_back(fmt::format(
          "the optimizer counts {} steps, and the files say iteration {}: one may be another "
          "save's",
          steps, iteration));
    if (steps == 0 && iteration > 0 && has_moments)
      remarks.push_back(
          fmt::format("Adam's moments have no steps, and the files say iteration {}: a program "
                      "that continues with them begins to count at 0",
                      iteration));
  }

  void begin(Catalog& catalog) const {
    catalog.tensors.clear();
    catalog.aliases.clear();
    catalog.units.clear();
    catalog.groups = nullptr;
    catalog.world_size = static_cast<std::uint32_t>(run_.stages * run_.tensor_ranks);
    if (catalog.producer.is_object()) catalog.producer.erase("torch_arrangement");  // of one file
  }

  /// Returns the number of layers in the stage, of which `before` precede it.
  std::uint64_t add_stage(const Catalog& stage, std::uint32_t number, std::uint64_t before,
                          JoinedCatalog& out) {
    std::map<std::uint64_t, std::set<std::string>> layers;
    for (std::size_t i = 0; i < stage.tensors.size(); ++i) {
      const TensorInfo& tensor = stage.tensors[i];
      const bool is_taken = has_states() || deepspeed::is_of_model(tensor);
      if (!is_taken || tensor.fqn.ends_with(kModuleState)) continue;
      const auto layer = parse_layer_name(tensor.fqn);
      if (layer) layers[layer->layer].emplace(layer->local);
      if (layer) layers_of_ = layer->before;
      TensorInfo whole = tensor;
      whole.fqn = name_in_model(tensor.fqn, before);
      if (!has_states()) whole.group = -1;
      add(std::move(whole), number, i, out);
    }
    if (has_states()) add_groups(stage.groups, before, out.catalog);
    if (has_states() && number > 0) add_scalars(stage.client_state, before, out.catalog);
    if (!layers.empty() && layers.rbegin()->first + 1 != layers.size())
      refuse(
          fmt::format("stage {} lacks one of its layers below {}", number, layers.rbegin()->first));
    for (const auto& [layer, names] : layers) require_like_others(before + layer, names);
    return layers.size();
  }

  /// Returns the name of a tensor of a stage that `before` layers precede.
  static std::string name_in_model(const std::string& name, std::uint64_t before) {
    const auto layer = parse_layer_name(name);
    if (!layer) return name;
    return fmt::format("{}{}.{}", layer->before, before + layer->layer, layer->local);
  }

  /// Adds the steps and other values that a stage keeps of its parameters to those of the whole
  /// model. A copy of the tied embedding has those of the embedding.
  static void add_scalars(const Json& client_state, std::uint64_t before, Catalog& catalog) {
    const std::string key(kOptimizerScalars);
    const auto rename = [&](const std::string& name) { return name_in_model(name, before); };
    const Json renamed = rename_optimizer_scalars(client_state, rename);
    if (!renamed.is_object() || !renamed.contains(key)) return;
    for (const auto& [state, values] : renamed[key].items()) {
      for (const auto& [name, value] : values.items()) {
        const bool is_copy = std::ranges::count(catalog.aliases, name, &Alias::fqn) > 0;
        if (!is_copy) catalog.client_state[key][state][name] = value;
      }
    }
  }

  /// Appends the parameters of a stage's groups to those of the whole model.
  static void add_groups(const Json& groups, std::uint64_t before, Catalog& catalog) {
    if (catalog.groups.is_null()) {
      catalog.groups = groups;
      for (Json& group : catalog.groups) group["params"] = Json::array();
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (const Json& parameter : groups[g]["params"]) {
        const std::string name = name_in_model(parameter.get<std::string>(), before);
        const bool is_copy = std::ranges::any_of(
            catalog.aliases, [&](const Alias& alias) { return alias.fqn == name; });
        if (!is_copy) catalog.groups[g]["params"].push_back(name);
      }
    }
  }

  /// All layers of a GPT have the same tensors.
  void require_like_others(std::uint64_t layer, const std::set<std::string>& names) {
    if (layer_names_.empty()) layer_names_ = names;
    if (names == layer_names_) return;
    std::vector<std::string> different;
    std::ranges::set_symmetric_difference(names, layer_names_, std::back_inserter(different));
    refuse(fmt::format("layer {} and the first layer have different tensors: only one has {}",
                       layer, quote(different.front())));
  }

  void add(TensorInfo tensor, std::uint32_t stage, std::size_t number, JoinedCatalog& out) {
    const Shape origin(tensor.shape.size(), 0);
    if (const auto first = find_tied(tensor, out.catalog)) {
      boxes_[*first].front().copies.push_back({stage, origin});
      numbers_[{*first, stage}] = number;
      const Alias alias{tensor.fqn, out.catalog.tensors[*first].fqn};
      if (std::ranges::count(out.catalog.aliases, alias) == 0) out.catalog.aliases.push_back(alias);
      return;
    }
    if (!names_.emplace(std::pair(tensor.fqn, tensor.state), boxes_.size()).second)
      refuse(fmt::format("two stages hold {}", tensor.label()));
    numbers_[{boxes_.size(), stage}] = number;
    boxes_.push_back({SharedBox{{origin, tensor.shape}, {{stage, origin}}}});
    out.catalog.tensors.push_back(std::move(tensor));
  }

  /// Returns the number of the embedding of which the tensor is a copy.
  std::optional<std::size_t> find_tied(const TensorInfo& tensor, const Catalog& catalog) const {
    const auto* const tied =
        std::ranges::find(kTied, tensor.fqn, [](const auto& pair) { return pair.first; });
    if (!run_.is_tied || tied == kTied.end()) return std::nullopt;
    const auto first = names_.find({std::string(tied->second), tensor.state});
    if (first == names_.end()) return std::nullopt;
    const TensorInfo& embedding = catalog.tensors[first->second];
    if (embedding.shape != tensor.shape || embedding.dtype != tensor.dtype)
      refuse(fmt::format("{} is no copy of {}, of which it has neither shape nor type",
                         quote(tensor.fqn), quote(embedding.fqn)));
    return first->second;
  }

  [[noreturn]] void unsupported(const std::string& why) const {
    raise(ErrorCode::Unsupported,
          fmt::format("{}: a tensor- or pipeline-parallel checkpoint of Megatron-LM in {} parts, "
                      "which are not put together: {}",
                      folder_.string(), files_.size(), why),
          "convert it with Megatron-LM's tools/checkpoint/convert.py, or save it with "
          "--ckpt-format torch_dist");
  }
  [[noreturn]] void refuse(const std::string& why) const {
    raise(ErrorCode::Corrupt, fmt::format("{}: {}", folder_.string(), why));
  }

  Storage& storage_;
  const Path& folder_;
  bool has_states() const { return !named_.empty(); }

  std::map<Rank, Path> files_;
  MegatronRun run_;
  std::map<Rank, std::unique_ptr<Source>> named_;  // files with the states of their optimizers
  std::set<std::string> left_out_;                 // values that the ranks have beside the states
  std::string why_no_states_;                      // empty too where there are none
  bool has_lone_schedule_ = false;                 // of an optimizer that the files lack
  std::optional<Json> iteration_;                  // that the first file has
  std::set<std::string> layer_names_;              // of the first layer
  std::string layers_of_;                          // what precedes the number of a layer
  std::set<std::pair<Role, std::string>> told_;    // losses
  // Numbers of the whole tensors, by name and state.
  std::map<std::pair<std::string, std::string>, std::size_t> names_;
  std::vector<std::vector<SharedBox>> boxes_;                             // of each whole tensor
  std::map<std::pair<std::size_t, std::uint32_t>, std::size_t> numbers_;  // in a stage's catalog
};

}  // namespace

bool has_megatron_parts(Storage& storage, const Path& folder) {
  try {
    return MegatronParts(storage, folder).find();
  } catch (const Error& error) {
    return error.code() == ErrorCode::Unsupported;
  }
}

std::unique_ptr<Source> open_megatron_parts(Storage& storage, const Path& folder) {
  return MegatronParts(storage, folder).open();
}

}  // namespace unishard::converters
