// In a universal checkpoint, zero/<fqn>/<state>.pt holds one whole state; the model file beside it
// holds frozen parameters, buffers and counters. ds_to_universal writes payloads of stages 1 and 2
// as {"param": tensor}, of stage 3 as a flat tensor. For stages 1 and 2 it also writes a fp32.pt
// for each frozen parameter, second name and buffer, cast to float32; these tensors are read from
// the model file instead, and compared with the copies.
#include "unishard/format/error.hpp"
#include "unishard/format/text.hpp"

#include "containers/equal_elements.hpp"
#include "core/adam_settings.hpp"
#include "formats/deepspeed/cpu_states.hpp"
#include "formats/deepspeed/flat_groups.hpp"
#include "formats/deepspeed/frozen_pieces.hpp"
#include "formats/deepspeed/layout.hpp"
#include "formats/deepspeed/listed_patterns.hpp"
#include "formats/deepspeed/missing_moments.hpp"
#include "formats/deepspeed/module_files.hpp"
#include "formats/deepspeed/optimizer_file.hpp"
#include "formats/deepspeed/reader.hpp"
#include "formats/deepspeed/shard_copies.hpp"
#include "formats/deepspeed/universal_copies.hpp"
#include "formats/deepspeed/universal_parts.hpp"
#include "reading/broken_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <utility>

namespace unishard::converters {
namespace deepspeed {
namespace {

constexpr std::string_view kMaster = "fp32.pt";
constexpr const char *kFirstMoment = "exp_avg.pt", *kSecondMoment = "exp_avg_sq.pt";
constexpr std::string_view kStep = "step.pt";
constexpr const char* kUnknownFolder =
    "zero/ has a folder of this name, and the model files do not know it";

/// Names of the parameters that have a folder below zero/, and the files in it.
using ParameterFolders = std::map<std::string, std::vector<std::string>>;

/// A parameter's name may contain "/"; its folder is then nested.
void find_folders(Storage& storage, const Path& folder, const std::string& name, unsigned depth,
                  ParameterFolders& out) {
  constexpr unsigned kDepth = 16;
  if (depth > kDepth) return;
  for (const Entry& entry : storage.list(folder)) {
    if (entry.name.starts_with('.')) continue;  // what a file manager leaves
    const std::string inner = name.empty() ? entry.name : fmt::format("{}/{}", name, entry.name);
    if (entry.kind == EntryKind::Directory)
      find_folders(storage, folder / entry.name, inner, depth + 1, out);
    if (entry.kind == EntryKind::File && entry.name.ends_with(".pt") && !name.empty())
      out[name].push_back(entry.name);
  }
}

constexpr const char* kSettings = "zero/optimizer_state.pt";

class UniversalReader {
 public:
  UniversalReader(Storage& storage, const Path& folder)
      : storage_(storage),
        pool_(reading_pool(storage)),
        tag_files_(find_files(storage, folder)),
        files_(tag_files_.model_ranks.at(0)),
        zero_(folder / "zero"),
        where_(folder.string()) {}

  std::unique_ptr<Source> read() {
    read_model();
    find_folders(storage_, zero_, {}, 0, folders_);
    find_settings();
    add_parameters();
    check_states();
    for (std::size_t i = 0; i < parameters_.all().size(); ++i) read_states_of(i);
    lose_copied_moments();
    doubt_copied_moments();
    doubt_copied_masters();
    if (has_lost_states_) drop_states();
    if (steps_.empty()) steps_ = common_steps_;
    check_weights();
    check_copies();
    Catalog& catalog = parts_.catalog;
    const std::uint64_t data_ranks =
        std::clamp<std::uint64_t>(model_.world_size.value_or(1), 1, ~0u);
    catalog.world_size = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(data_ranks * tag_files_.model_ranks.size(), ~0u));
    catalog.stage = stage();
    catalog.groups = describe_groups(settings_, parameters_);
    catalog.loss_scaler = loss_scaler_;
    take_run_facts(model_, catalog);
    if (is_parallel_) keep_cut_patterns(catalog, nullptr);
    name_cpu_states(parameters_, catalog.groups, notes_);
    assemble({&model_, &parameters_, &frozen_, has_placeholders(), true}, parts_, notes_);
    restore_groups(model_, catalog);
    catalog.step = choose_step(steps_, model_, catalog, notes_);
    say_unmatched_of(parts_.catalog, where_, parts_.remarks);
    parts_.format = "deepspeed-universal";
    parts_.module_part = module_part_of(model_);
    parts_.notes = notes_.lines();
    parts_.losses = notes_.losses();
    return make_pieced_source(std::move(parts_), where_);
  }

 private:
  TorchFile open(const Path& path) const { return open_rank_file(pool_, path); }
  bool has_placeholders() const { return !files_.model; }

  std::uint32_t stage() const {
    if (stage_) return *stage_;
    const Json configured = zero_setting(model_.config, "stage");
    if (configured.is_number_integer() && configured >= 0 && configured <= 3)
      return configured.get<std::uint32_t>();
    return has_placeholders() ? 3 : 1;
  }

  /// The model files of a tensor- or pipeline-parallel run hold parts of tensors; zero/ holds whole
  /// ones. The files tell which parameter is in which group.
  void read_parallel_models() {
    std::vector<std::pair<std::uint32_t, Path>> paths;
    for (const auto& [rank, files] : tag_files_.model_ranks) {
      if (const Path* const model = files.first_model()) paths.emplace_back(rank, *model);
    }
    if (paths.size() < parallel_ranks_)
      notes_.lose(
          {Role::SideFile, "mp_rank_*_model_states.pt",
           fmt::format("{} of {} are missing", parallel_ranks_ - paths.size(), parallel_ranks_)});
    for (const auto& [rank, path] : paths) {
      TorchFile file = open(path);
      ModelFile model = read_parallel_model_file(file, notes_);
      const ShapeGroups shapes = std::exchange(model.param_shapes, {}).value_or(ShapeGroups());
      for (std::size_t g = 0; g < shapes.size(); ++g) {
        for (const NamedShape& named : shapes[g])
          parallel_groups_.emplace_back(named.fqn, static_cast<std::int32_t>(g));
      }
      const auto listed = std::exchange(model.buffer_names, {});
      modules_.add(file, listed.value_or(std::vector<std::string>()));
      parts_of_ranks_.add(rank, std::move(file), shapes);
      if (path == paths.front().second) {
        model_ = std::move(model);
      } else if (model.global_steps != model_.global_steps) {
        parts_.remarks.push_back(fmt::format(
            "{} is of {} global steps, and {} of {}: they may be of two saves", path.string(),
            model.global_steps, paths.front().second.string(), model_.global_steps));
      }
    }
    take_buffers();
  }

  /// A buffer that differs between the files may be cut, or have drifted.
  void take_buffers() {
    model_.module = modules_.whole_buffers();
    model_.buffer_names.emplace();
    for (const NamedView& buffer : model_.module) model_.buffer_names->push_back(buffer.name);
    for (const std::string& name : modules_.other_buffers()) {
      notes_.lose({Role::Buffer, name,
                   "it differs between the model files of the parallel ranks, or one lacks it"});
      lost_.insert(name);
    }
  }

  void read_model() {
    if (const Path* const model = files_.first_model()) {
      const ParallelDegrees degrees = degrees_of(open(*model));
      if (degrees.has_experts || degrees.has_auto_experts || tag_files_.old_expert ||
          !tag_files_.experts.empty()) {
        raise(
            ErrorCode::Unsupported,
            fmt::format("{}: {}: a mixture of experts, which is not read", where_, degrees.text()),
            kGatherExperts);
      }
      is_parallel_ = tag_files_.model_ranks.size() > 1 || degrees.pipeline > 1 ||
                     degrees.tensor > 1 || degrees.has_layer_files;
      parallel_ranks_ = degrees.tensor * (degrees.is_told ? degrees.pipeline : 1);
      // Before DeepSpeed 0.19.5, the files of a pipeline tell the product of both alone.
      if (degrees.is_told || !degrees.has_layer_files) parts_of_ranks_.set_ranks(degrees.tensor);
    }
    if (is_parallel_) return read_parallel_models();
    if (files_.model) {
      model_ = read_model_file(open(*files_.model), false, notes_);
      frozen_ = whole_frozen(model_, notes_);
      return;
    }
    if (files_.rank_models.empty()) {
      raise(ErrorCode::Corrupt, fmt::format("{}: no *_model_states.pt beside zero/", where_),
            "copy the model files of the checkpoint that it was made from");
    }
    model_ = read_model_file(open(files_.rank_models.front().second), true, notes_);
    const bool has_buffers = model_.buffer_names && !model_.buffer_names->empty();
    if (model_.frozen_shapes.empty() && !has_buffers) return;  // the others hold nothing more
    const std::uint64_t world_size = model_.world_size.value_or(files_.rank_models.size());
    if (!model_.frozen_shapes.empty())
      check_complete(tag_files_.folder, files_.rank_models, world_size, "model", "dp_world_size");
    FrozenSlices slices(model_, world_size);
    for (const auto& [rank, path] : files_.rank_models) {
      slices.add_rank(rank == 0 ? model_ : read_model_file(open(path), true, notes_), rank, notes_);
    }
    frozen_ = slices.take();
  }

  /// A model needs no settings: a file of them that is missing or damaged is lost.
  void find_settings() {
    const Path path = zero_ / "optimizer_state.pt";
    Losses losses;
    if (storage_.kind(path) == EntryKind::File) {
      read_or_lose(losses, Role::Setting, kSettings, [&] { read_optimizer_state(open(path)); });
    } else {
      losses.push_back({Role::Setting, kSettings,
                        "the file is missing: there are no settings of parameter groups"});
    }
    for (Loss& loss : losses) notes_.lose(std::move(loss));
  }

  void read_optimizer_state(const TorchFile& file) {
    const Value root = file.root();
    if (const auto stage = present(root, "zero_stage")) stage_ = zero_stage(*stage);
    loss_scaler_ = read_loss_scaler(file, present(root, "loss_scaler"), notes_);
    const auto inner = present(root, "optimizer_state_dict");
    auto groups = present(root, "param_groups");
    if (inner && !groups) groups = present(*inner, "param_groups");
    if (groups) {
      settings_ = read_group_settings(file, *groups, members_, notes_);
    } else {
      notes_.lose({Role::Setting, kSettings,
                   "it has no param_groups: there are no settings of parameter groups"});
    }
    if (!inner) return;
    // Stage 3 has no step.pt; the steps are those of the sub-groups.
    const auto states = present(*inner, "state");
    for (std::size_t i = 0; states && i < states->pair_count(); ++i) {
      if (const auto step = present(states->value(i), "step"))
        common_steps_.push_back(step_of(file, *step));
    }
  }

  /// The trainable parameters with their shapes and groups, in the groups' own order.
  void add_parameters() {
    if (is_parallel_) return add_parallel();
    if (!model_.param_shapes) return add_unlisted();
    const ShapeGroups& shapes = *model_.param_shapes;
    const std::size_t groups = settings_.is_array() ? settings_.size() : 0;
    std::vector<std::int32_t> group_of(shapes.size(), -1);
    if (groups == shapes.size()) {
      for (std::size_t g = 0; g < groups; ++g) group_of[g] = static_cast<std::int32_t>(g);
    } else if (groups > 0) {
      group_of = owners(members_, shapes.size(), where_);
    }
    const bool is_round_robin = uses_round_robin();
    for (std::size_t g = 0; g < shapes.size(); ++g) {
      const auto names =
          is_round_robin ? undo_round_robin(shapes[g], model_.world_size.value_or(1)) : shapes[g];
      for (const NamedShape& named : names) {
        if (!folders_.contains(named.fqn)) raise_missing(named.fqn);
        parameters_.add(named.fqn, named.shape, group_of[g]);
      }
    }
    note_unlisted();
  }

  /// The parameters in the order of the parallel ranks, then those that no rank lists.
  void add_parallel() {
    const std::size_t groups = settings_.is_array() ? settings_.size() : 0;
    for (const auto& [fqn, group] : parallel_groups_) {
      if (parameters_.find(fqn)) continue;  // several ranks have a part of it
      if (!folders_.contains(fqn)) raise_missing(fqn);
      const bool is_known = static_cast<std::size_t>(group) < groups;
      const Shape shape = shape_of_folder(fqn);
      parts_of_ranks_.check_shape(fqn, shape, where_);
      parameters_.add(fqn, shape, is_known ? group : -1);
    }
    for (const auto& [name, files] : folders_) {
      if (!is_trained(files) || parameters_.find(name)) continue;
      if (parallel_groups_.empty()) {
        parameters_.add(name, shape_of_folder(name), groups == 1 ? 0 : -1);
      } else {
        notes_.lose({Role::Weight, name, kUnknownFolder});
      }
    }
    std::erase_if(folders_, [&](const auto& folder) {
      return !is_trained(folder.second) && lost_.contains(folder.first);
    });
    lose_parts();
    add_folders_without_model();
    lose_cut_weights();
  }

  /// ds_to_universal copies what was not trained from the module of the first rank, which has a
  /// part of it where tensors were cut.
  void lose_parts() {
    std::erase_if(folders_, [&](const auto& folder) {
      const auto& [name, files] = folder;
      const bool is_copy = !is_trained(files) && !parameters_.find(name);
      if (!is_copy || !modules_.is_part(name, shape_of_folder(name))) return false;
      lose_weight(name, "zero/ has the part of one tensor-parallel rank");
      return true;
    });
  }

  /// What the ranks' model files hold is cut; zero/ must have it whole, under one of its names.
  void lose_cut_weights() {
    for (const auto& names : modules_.names()) {
      const bool is_known = std::ranges::any_of(names, [&](const std::string& name) {
        return parameters_.find(name) || frozen_.contains(name) || lost_.contains(name);
      });
      if (!is_known)
        lose_weight(names.front(),
                    "the model files of the ranks hold parts of it, and zero/ has no folder of it");
    }
  }

  void lose_weight(const std::string& name, const char* why) {
    if (lost_.insert(name).second)
      notes_.lose({.role = Role::Weight, .name = name, .why = why, .is_frozen = true});
  }

  /// An optimizer has the same states for all parameters of a group, so a file that only some of
  /// them have was lost for the others. Different groups may have different states.
  void check_states() {
    std::map<std::int32_t, std::set<std::string>> of_group;
    for (const Parameter& parameter : parameters_.all()) {
      if (parameter.group < 0) continue;  // it is not known which states to expect
      const std::vector<std::string>& files = folders_.at(parameter.fqn);
      of_group[parameter.group].insert(files.begin(), files.end());
    }
    for (const auto& [group, files] : of_group)
      check_moments(static_cast<std::size_t>(group), files);
    for (const Parameter& parameter : parameters_.all()) {
      if (parameter.group < 0) continue;
      const std::vector<std::string>& files = folders_.at(parameter.fqn);
      for (const std::string& wanted : of_group.at(parameter.group)) {
        if (std::ranges::find(files, wanted) != files.end()) continue;
        if (wanted == kMaster) raise_missing(parameter.fqn);
        lose_state(parameter.fqn, wanted, "missing: the conversion to this folder did not finish");
      }
    }
  }

  void check_moments(std::size_t group, const std::set<std::string>& files) {
    if (group >= settings_.size()) return;
    std::set<std::string> states;
    for (const std::string& file : files) {
      if (file != kMaster && file != kStep) states.insert(file.substr(0, file.rfind('.')));
    }
    const bool has_stepped = files.contains(std::string(kStep)) || !common_steps_.empty();
    for (const std::string_view moment : missing_moments(settings_[group], states, has_stepped))
      lose_moment(fmt::format("{}.pt", moment), group);
  }

  void lose_moment(const std::string& file, std::size_t group) {
    lose_state("*", file,
               fmt::format("no parameter of group {} has it, and an optimizer of these settings "
                           "has it of each",
                           group));
  }

  /// A model needs no state. Where one is lost, training cannot go on from the others either.
  void lose_state(const std::string& fqn, const std::string& file, std::string why) {
    has_lost_states_ = true;
    notes_.lose({.role = Role::Optimizer,
                 .name = fmt::format("zero/{}/{}", fqn, file),
                 .why = std::move(why),
                 .is_broken = true});
  }

  /// Two parameters may have the same gradients (the two biases of an LSTM), and then have both
  /// moments in common: where only the first is the same, it is a copy.
  void lose_copied_moments() {
    ShardCopies firsts;
    std::map<std::string, const Parameter*> known;
    for (const Parameter& parameter : parameters_.all()) {
      const TensorView* const moment = whole_state(parameter, kFirstMoment);
      if (moment == nullptr) continue;
      known.emplace(parameter.fqn, &parameter);
      const auto other = firsts.find_or_add(parameter.fqn, {*moment});
      if (!other) continue;
      const TensorView* const own = whole_state(parameter, kSecondMoment);
      const TensorView* const theirs = whole_state(*known.at(*other), kSecondMoment);
      if (own != nullptr && theirs != nullptr && !equal_elements(*own, *theirs))
        lose_state(
            parameter.fqn, kFirstMoment,
            fmt::format("a copy of zero/{}/{}, or the other is one of it", *other, kFirstMoment));
    }
  }

  /// Second moments that are the same beside first ones that differ are doubted: gradients of
  /// opposite signs have such.
  void doubt_copied_moments() {
    const auto names = copied(kSecondMoment, {kFirstMoment}, {});
    if (!names.empty())
      parts_.remarks.push_back(fmt::format(
          "two parameters have the same exp_avg_sq and not the same exp_avg: one of the files may "
          "be a copy: {}",
          first_names(names)));
  }

  /// Masters that are the same beside moments that differ are doubted, unless the module tells what
  /// they round to. Layers that were made as copies of one have the same before they are trained,
  /// also after a first step whose learning rate is 0.
  void doubt_copied_masters() {
    const auto& steps = steps_.empty() ? common_steps_ : steps_;
    if (steps.empty() || std::ranges::max(steps) < 2) return;
    std::set<std::string> excluded = names_in_modules();
    for (const Parameter& parameter : parameters_.all()) {
      if (is_at_rest(parameter.group)) excluded.insert(parameter.fqn);
    }
    const auto names = copied(kMaster, {kFirstMoment, kSecondMoment}, excluded);
    if (!names.empty())
      parts_.remarks.push_back(fmt::format(
          "two parameters have the same fp32.pt and not the same moments: one of the files may be "
          "a copy: {}",
          first_names(names)));
  }

  /// Returns the parameters of which the model files hold values.
  std::set<std::string> names_in_modules() const {
    std::set<std::string> names;
    for (const NamedView& entry : model_.module) {
      if (entry.view.storage && entry.view.elements() > 0) names.insert(entry.name);
    }
    for (const auto& of_one : modules_.names()) names.insert(of_one.begin(), of_one.end());
    return names;
  }

  /// Returns whether the learning rate of a group is 0.
  bool is_at_rest(std::int32_t group) const {
    if (group < 0 || std::cmp_greater_equal(group, settings_.size())) return false;
    const Json& settings = settings_[static_cast<std::size_t>(group)];
    return settings.contains("lr") && settings["lr"].is_number() && settings["lr"] == 0;
  }

  /// Returns the pairs of parameters whose `file` is the same, and none of `others` is. Parameters
  /// in `excluded` are passed over, and files of one value only.
  std::vector<std::string> copied(std::string_view file,
                                  const std::vector<std::string_view>& others,
                                  const std::set<std::string>& excluded) const {
    ShardCopies known;
    std::vector<std::string> names;
    for (const Parameter& parameter : parameters_.all()) {
      const TensorView* const own = whole_state(parameter, file);
      const bool is_whole = std::ranges::all_of(
          others, [&](auto other) { return whole_state(parameter, other) != nullptr; });
      if (own == nullptr || !is_whole || excluded.contains(parameter.fqn)) continue;
      const auto earlier = known.find_or_add(parameter.fqn, {*own});
      if (!earlier) continue;
      const Parameter& first = parameters_.all()[*parameters_.find(*earlier)];
      const bool is_alike = std::ranges::any_of(others, [&](auto other) {
        return equal_elements(*whole_state(first, other), *whole_state(parameter, other));
      });
      if (!is_alike) names.push_back(fmt::format("{} and {}", first.fqn, parameter.fqn));
    }
    return names;
  }

  static const TensorView* whole_state(const Parameter& parameter, std::string_view file) {
    const auto found = std::ranges::find_if(parameter.states, [&](const StatePieces& state) {
      return file == state.state + ".pt" && state.pieces.size() == 1;
    });
    return found == parameter.states.end() ? nullptr : &found->pieces.front().view;
  }

  void drop_states() {
    for (Parameter& parameter : parameters_.all())
      std::erase_if(parameter.states,
                    [](const StatePieces& state) { return state.state != state::kFp32; });
    steps_.clear();
    common_steps_.clear();
  }

  [[noreturn]] void raise_missing(const std::string& fqn, std::string_view file = kMaster) const {
    for (const Entry& entry : storage_.list(zero_)) {
      if (entry.name == fqn && entry.kind == EntryKind::Closed)
        raise_errno("looking into", (zero_ / fqn).native(), EACCES);
    }
    raise(ErrorCode::Corrupt,
          fmt::format("{}: zero/{}/{} is missing: the conversion to this folder did not finish",
                      where_, fqn, file),
          "convert the regular checkpoint again");
  }

  bool uses_round_robin() const {
    return !has_placeholders() &&
           zero_setting(model_.config, "round_robin_gradients") == Json(true);
  }

  static bool is_trained(const std::vector<std::string>& files) {
    return std::ranges::any_of(files, [](const std::string& file) { return file != kMaster; });
  }

  /// Reports a folder that is neither a listed parameter nor a copy of something in the model file.
  void note_unlisted() {
    std::set<std::string_view> in_model;
    for (const NamedView& entry : model_.module) in_model.insert(entry.name);
    for (const auto& [name, files] : folders_) {
      if (parameters_.find(name)) continue;
      if (!in_model.contains(name))
        notes_.lose({Role::Weight, name, kUnknownFolder});
      else if (is_trained(files))
        notes_.lose({.role = Role::Optimizer,
                     .name = fmt::format("zero/{}", name),
                     .why = "it has states of the optimizer, and param_shapes does not list it",
                     .is_broken = true});
    }
  }

  /// Without param_shapes (folders made by other tools): the parameters are the folders that have
  /// more than fp32.pt, in the module's order as far as it names them.
  void add_unlisted() {
    const std::size_t groups = settings_.is_array() ? settings_.size() : 0;
    const std::int32_t group = groups == 1 ? 0 : -1;
    std::set<std::string> left;
    for (const auto& [name, files] : folders_) {
      if (is_trained(files)) left.insert(name);
    }
    for (const NamedView& entry : model_.module) {
      if (left.erase(entry.name) > 0)
        parameters_.add(entry.name, shape_of_folder(entry.name), group);
    }
    for (const std::string& name : left) parameters_.add(name, shape_of_folder(name), group);
    if (groups > 1)
      notes_.add(
          "the model file has no param_shapes: which parameter is in which group is unknown");
    add_folders_without_model();
  }

  /// Adds a frozen parameter of which only fp32.pt exists and the model file has nothing.
  void add_folders_without_model() {
    std::set<std::string_view> in_model;
    for (const NamedView& entry : model_.module) in_model.insert(entry.name);
    for (const auto& [name, files] : folders_) {
      if (is_trained(files) || in_model.contains(name) || parameters_.find(name)) continue;
      TensorView view = float_payload(zero_ / name / kMaster);
      const Shape shape = view.shape;
      frozen_[name] = {shape, {{{0, view.elements()}, view, 0}}};
      model_.frozen_fragments.push_back({name, std::move(view)});
    }
  }

  Shape shape_of_folder(const std::string& name) {
    const Path file = zero_ / name / kMaster;
    if (storage_.kind(file) != EntryKind::File) raise_missing(name);
    return payload(file).shape;
  }

  /// Refuses one state's file in the place of another's: torch names the folder in an archive after
  /// the file.
  void require_own_name(const TorchFile& file, const Path& path) const {
    const std::string written = file.archive_name() + ".pt";
    if (written == path.filename().string() ||
        storage_.kind(path.parent_path() / written) != EntryKind::File)
      return;
    raise(ErrorCode::Corrupt,
          fmt::format("{}: it was written as {}, and a file of that name is beside it",
                      path.string(), unishard::quote(written)),
          "convert the regular checkpoint again");
  }

  TensorView payload(const Path& path) const {
    const TorchFile file = open(path);
    require_own_name(file, path);
    const auto param = present(file.root(), "param");
    return tensor_of(file, param ? *param : file.root(), "its payload");
  }

  /// Returns the payload of a state that a model is computed or trained with.
  TensorView float_payload(const Path& path) const {
    TensorView view = payload(path);
    if (info(view.dtype).kind == unishard::Kind::Float) return view;
    raise(ErrorCode::Corrupt,
          fmt::format("{}: it holds {}, and its values are floating-point numbers", path.string(),
                      name_of(view.dtype)));
  }

  void read_states_of(std::size_t index) {
    const std::string fqn = parameters_.all()[index].fqn;
    std::vector<std::string> names = folders_.at(fqn);
    // fp32 first, the others by name.
    const auto master = std::ranges::find(names, kMaster);
    if (master == names.end()) raise_missing(fqn);
    std::rotate(names.begin(), master, master + 1);
    bool is_contradicted = false;
    for (const std::string& name : names) {
      try {
        is_contradicted |= !read_state(index, zero_ / fqn / name);
      } catch (const Error& error) {
        if (name == kMaster || error.code() != ErrorCode::Corrupt) throw;
        lose_state(fqn, name, fmt::format("damaged ({})", error.what()));
      }
    }
    if (is_contradicted && !is_shape_told()) require_agreement(parameters_.all()[index]);
  }

  /// Returns whether a model file tells the shapes of whole parameters; else fp32.pt alone does.
  bool is_shape_told() const { return !is_parallel_ && model_.param_shapes; }

  /// Refuses a master whose shape none of the other states has.
  void require_agreement(const Parameter& parameter) const {
    if (parameter.states.size() > 1) return;
    raise(ErrorCode::Corrupt,
          fmt::format("{}: zero/{}/{} has the shape ({}), and no other state of the parameter has "
                      "that shape: the file is damaged, or of another save",
                      where_, parameter.fqn, kMaster, fmt::join(parameter.shape, ", ")),
          "convert the regular checkpoint again");
  }

  /// Returns false when the state contradicts the shape of its parameter, and is lost for it.
  bool read_state(std::size_t index, const Path& path) {
    if (path.filename() == kStep) {
      steps_.push_back(read_step(path));
      return true;
    }
    return add_state(index, path, path.stem().string());
  }

  std::int64_t read_step(const Path& path) const {
    const TorchFile file = open(path);
    const auto param = present(file.root(), "param");
    return step_of(file, param ? *param : file.root());
  }

  bool add_state(std::size_t index, const Path& path, const std::string& state) {
    const Parameter& parameter = parameters_.all()[index];
    const bool is_float = path.filename() == kMaster || path.filename() == kFirstMoment ||
                          path.filename() == kSecondMoment;
    const TensorView view = is_float ? float_payload(path) : payload(path);
    const bool is_flat =
        is_shape_told() && view.shape.size() == 1 && view.elements() == parameter.elements;
    if (view.shape == parameter.shape || is_flat) {
      parameters_.add_piece(index, state, {{0, view.elements()}, view, 0});
      return true;
    }
    if (view.shape.empty() && state != state::kFp32) {
      notes_.lose({Role::State, state, "a number"});
      return true;
    }
    const std::string why =
        fmt::format("{}: shape ({}), but the parameter's is ({})", path.string(),
                    fmt::join(view.shape, ", "), fmt::join(parameter.shape, ", "));
    if (state == state::kFp32) raise(ErrorCode::Corrupt, why);
    lose_state(parameter.fqn, path.filename().string(), fmt::format("damaged ({})", why));
    return view.elements() == 1;  // a number has no shape of a parameter
  }

  /// ds_to_universal mistakes round-robin partitions for plain ones without an error.
  void check_weights() {
    const std::vector<std::string> names =
        is_parallel_ ? parts_of_ranks_.differing(parameters_)
                     : compare_weights(model_.module, parameters_).differing;
    if (names.empty()) return;
    if (uses_round_robin()) {
      raise(
          ErrorCode::Corrupt,
          fmt::format("{}: the values of {} and {} more are not its own: ds_to_universal mixes up "
                      "the parameters of runs with round_robin_gradients",
                      where_, unishard::quote(names.front()), names.size() - 1),
          "convert the regular checkpoint with UniShard");
    }
    notes_.add(fmt::format("{} parameters, first {}, are not in the module what fp32.pt rounds to",
                           names.size(), unishard::quote(names.front())));
  }

  /// Compares the folders that are not of parameters with the entries of the module.
  void check_copies() {
    std::vector<std::string> differing;
    for (const NamedView& entry : model_.module) {
      const auto folder = folders_.find(entry.name);
      if (folder == folders_.end() || parameters_.find(entry.name)) continue;
      if (std::ranges::find(folder->second, kMaster) == folder->second.end()) continue;
      if (!is_copy_of(payload(zero_ / entry.name / kMaster), entry.view))
        differing.push_back(entry.name);
    }
    if (differing.empty()) return;
    notes_.add(
        fmt::format("zero/ has other values than the model file, which is read, of {} "
                    "entries: {}",
                    differing.size(), fmt::join(differing, ", ")));
  }

  Storage& storage_;
  std::shared_ptr<FilePool> pool_;
  TagFiles tag_files_;
  const RankFiles& files_;  ///< of the first model-parallel rank
  Path zero_;
  std::string where_;
  bool is_parallel_ = false;  ///< the model files hold parts of tensors
  std::uint64_t parallel_ranks_ = 1;
  ModelFile model_;
  std::vector<std::pair<std::string, std::int32_t>> parallel_groups_;  ///< fqn and group
  RankModules modules_;                                                ///< of a parallel run
  UniversalParts parts_of_ranks_;                                      ///< of a parallel run
  std::set<std::string> lost_;                                         ///< names, of a parallel run
  FrozenTable frozen_;
  ParameterFolders folders_;
  ParameterTable parameters_;
  Json settings_, loss_scaler_;
  std::vector<std::vector<std::uint64_t>> members_;
  std::vector<std::int64_t> steps_, common_steps_;
  std::optional<std::uint32_t> stage_;
  bool has_lost_states_ = false;
  PiecedCatalog parts_;
  Notes notes_;
};

}  // namespace
}  // namespace deepspeed

bool is_deepspeed_universal(Storage& storage, const Path& path) {
  if (storage.kind(path) != EntryKind::Directory) return false;
  return deepspeed::is_universal_tag(storage, path) ||
         storage.kind(path / "latest_universal") == EntryKind::File ||
         !deepspeed::tags_of(storage, path, deepspeed::kUniversal).empty();
}

std::unique_ptr<Source> open_deepspeed_universal(Storage& storage, const Path& path,
                                                 const OpenOptions& options) {
  const Path folder = deepspeed::choose_tag(storage, path, options.tag, deepspeed::kUniversal);
  if (!options.merge_rules.is_null()) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("--merge-rules: {} is a universal checkpoint", folder.string()),
          "leave the option out: its tensors are whole");
  }
  if (!deepspeed::is_universal_tag(storage, folder)) {
    raise(ErrorCode::NotFound,
          fmt::format("{}: no zero/<parameter>/fp32.pt of a universal checkpoint is in it",
                      folder.string()),
          "choose another checkpoint with --tag");
  }
  return deepspeed::UniversalReader(storage, folder).read();
}

}  // namespace unishard::converters
