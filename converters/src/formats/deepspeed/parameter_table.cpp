#include "formats/deepspeed/parameter_table.hpp"

#include "unishard/converters/cut_patterns.hpp"
#include "unishard/format/error.hpp"

#include "containers/equal_elements.hpp"
#include "core/file_records.hpp"
#include "formats/deepspeed/model_keys.hpp"
#include "reading/state_doubts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <unordered_set>

namespace unishard::converters::deepspeed {
namespace {

/// Collects the catalog's tensors in the module's order.
class Assembler {
 public:
  Assembler(const Assembly& assembly, PiecedCatalog& out, Notes& notes)
      : in_(assembly), out_(out), notes_(notes) {
    if (in_.model->buffer_names)
      buffers_.insert(in_.model->buffer_names->begin(), in_.model->buffer_names->end());
    for (const auto& [second, first] : in_.model->aliases) {
      if (!in_.parameters->find(second)) aliases_.emplace(second, first);
    }
    const Json wide = in_.model->own.value(kWideWeights, Json());
    for (const Json& name : wide.is_array() ? wide : Json::array()) {
      if (name.is_string()) wide_.insert(name.get<std::string>());
    }
  }

  void run() {
    for (const NamedView& entry : in_.model->module) add_entry(entry);
    for (const Parameter& parameter : in_.parameters->all()) {
      if (!done_.contains(parameter.fqn)) add_parameter(parameter, nullptr);
    }
    for (const NamedView& frozen : in_.model->frozen_fragments) {
      if (!done_.contains(frozen.name) && !aliases_.contains(frozen.name)) add_frozen(frozen);
    }
    for (const NamedShape& frozen : in_.model->frozen_shapes) {
      if (!done_.contains(frozen.fqn) && !aliases_.contains(frozen.fqn)) lose_frozen(frozen.fqn);
    }
    add_aliases();
    lose_buffers();
  }

 private:
  void add_entry(const NamedView& entry) {
    if (done_.contains(entry.name)) {
      raise(ErrorCode::Corrupt, fmt::format("{}: the module names {} twice", in_.model->name,
                                            unishard::quote(entry.name)));
    }
    if (aliases_.contains(entry.name)) return;
    if (const auto found = in_.parameters->find(entry.name)) {
      add_parameter(in_.parameters->all()[*found], &entry.view);
    } else if (is_buffer(entry)) {
      emit(entry.name, state::kBuffer, entry.view.shape, whole(entry.view));
    } else {
      add_frozen(entry);
    }
  }

  bool is_buffer(const NamedView& entry) const {
    if (in_.model->buffer_names) return buffers_.contains(entry.name);
    constexpr std::array<std::string_view, 3> kBatchNorm = {"running_mean", "running_var",
                                                            "num_batches_tracked"};
    const std::string_view name = entry.name;
    return std::ranges::any_of(kBatchNorm, [&](std::string_view s) { return name.ends_with(s); });
  }

  void add_parameter(const Parameter& parameter, const TensorView* weights) {
    done_.insert(parameter.fqn);
    for (const StatePieces& state : parameter.states) {
      emit(parameter.fqn, state.state, state.shape.value_or(parameter.shape), state.pieces).group =
          parameter.group;
    }
    if (weights != nullptr) add_weights(parameter, *weights);
  }

  /// Adds the module's own copy of a trainable parameter. It equals the master copy in a run of one
  /// precision.
  void add_weights(const Parameter& parameter, const TensorView& weights) {
    const auto has = [&](std::string_view name) {
      return std::ranges::find(parameter.states, name, &StatePieces::state);
    };
    check_shape(parameter, weights);
    if (has(state::kWeights) != parameter.states.end()) return;
    const auto master = has(state::kFp32);
    const bool has_master = master != parameter.states.end();
    if (has_master &&
        (master->pieces.front().view.dtype == weights.dtype || wide_.contains(parameter.fqn)))
      return;
    if (!in_.placeholders || weights.shape == parameter.shape) {
      emit(parameter.fqn, state::kWeights, parameter.shape, whole(weights)).group = parameter.group;
    } else if (has_master && master->pieces.front().view.dtype == DType::Float32 &&
               (weights.dtype == DType::BFloat16 || weights.dtype == DType::Float16)) {
      TensorInfo& tensor = emit(parameter.fqn, state::kWeights, parameter.shape, {});
      tensor.group = parameter.group;
      tensor.dtype = weights.dtype;
      tensor.derived = true;
    }
  }

  /// The module's parameters are empty at stage 3, unless it was gathered.
  void check_shape(const Parameter& parameter, const TensorView& weights) const {
    if (weights.shape == parameter.shape) return;
    if (in_.placeholders && weights.elements() == 0) return;
    raise(ErrorCode::Corrupt,
          fmt::format("{}: {} has the shape ({}) in the module and ({}) in param_shapes",
                      in_.model->name, unishard::quote(parameter.fqn),
                      fmt::join(weights.shape, ", "), fmt::join(parameter.shape, ", ")),
          "use another checkpoint, or find the files that belong together");
  }

  void lose_frozen(const std::string& name) {
    notes_.lose(
        {.role = Role::Weight, .name = name, .why = "no file holds its data", .is_frozen = true});
  }

  void add_frozen(const NamedView& entry) {
    done_.insert(entry.name);
    if (const auto found = in_.frozen->find(entry.name); found != in_.frozen->end()) {
      emit(entry.name, state::kWeights, found->second.shape, found->second.pieces).frozen = true;
    } else if (in_.placeholders && entry.view.elements() == 0) {
      done_.erase(entry.name);
      lose_frozen(entry.name);
    } else {
      emit(entry.name, state::kWeights, entry.view.shape, whole(entry.view)).frozen =
          in_.has_optimizer;
    }
  }

  void lose_buffers() {
    if (!in_.model->buffer_names) return;
    for (const std::string& name : *in_.model->buffer_names) {
      // A later stage of a pipeline has no file of a tied module.
      if (!in_.model->has_module && name.starts_with("tied_modules.")) continue;
      if (!done_.contains(name) && !aliases_.contains(name))
        notes_.lose({Role::Buffer, name, "buffer_names lists it, and no file holds it"});
    }
  }

  void add_aliases() {
    for (const auto& [second, first] : in_.model->aliases) {
      if (!aliases_.contains(second) || done_.contains(second)) continue;
      std::string target = first;
      for (std::size_t hops = 0; aliases_.contains(target) && hops < aliases_.size(); ++hops)
        target = aliases_.at(target);
      if (done_.contains(target)) {
        out_.catalog.aliases.push_back({second, target});
      } else {
        add_second_name(second, target);
      }
    }
  }

  /// A run that saves no frozen parameters, as one of PEFT, leaves out their first names alone.
  void add_second_name(const std::string& second, const std::string& target) {
    const auto entry = std::ranges::find(in_.model->module, second, &NamedView::name);
    const bool has_frozen =
        !in_.model->frozen_shapes.empty() || !in_.model->frozen_fragments.empty();
    if (entry == in_.model->module.end()) {
      notes_.lose({Role::Weight, second,
                   fmt::format("it is another name of {}, which no file holds", target)});
    } else if (in_.placeholders && entry->view.elements() == 0) {
      if (has_frozen) lose_frozen(second);
    } else {
      add_frozen(*entry);
      out_.catalog.aliases.push_back({target, second});
    }
  }

  static std::vector<ViewPiece> whole(const TensorView& view) {
    return {{{0, view.elements()}, view, 0}};
  }

  TensorInfo& emit(const std::string& fqn, std::string_view state, const Shape& shape,
                   std::vector<ViewPiece> pieces) {
    done_.insert(fqn);
    TensorInfo tensor;
    tensor.fqn = fqn;
    tensor.state = state;
    tensor.shape = shape;
    if (!pieces.empty()) tensor.dtype = pieces.front().view.dtype;
    out_.pieces.push_back(std::move(pieces));
    out_.catalog.tensors.push_back(std::move(tensor));
    return out_.catalog.tensors.back();
  }

  const Assembly& in_;
  PiecedCatalog& out_;
  Notes& notes_;
  std::unordered_set<std::string> buffers_, done_, wide_;  // wide_: see kWideWeights
  std::unordered_map<std::string, std::string> aliases_;
};

/// Returns the piece that begins with the parameter's first element; null when there is none.
const ViewPiece* first_piece(const std::vector<ViewPiece>& pieces) {
  const auto found = std::ranges::find_if(pieces, [](const ViewPiece& piece) {
    return piece.range.begin == 0 && !piece.range.empty();
  });
  return found == pieces.end() ? nullptr : &*found;
}

[[noreturn]] void raise_other_scalar(const std::string& fqn, const std::string& state,
                                     const std::string& file) {
  raise(ErrorCode::Corrupt,
        fmt::format("{}: {} of {} is not what the file of the first rank has: the files are not of "
                    "one save",
                    file, state, unishard::quote(fqn)),
        "find the optimizer files that belong together");
}

}  // namespace

std::size_t ParameterTable::add(const std::string& fqn, Shape shape, std::int32_t group) {
  if (!by_name_.emplace(fqn, parameters_.size()).second) {
    raise(ErrorCode::Corrupt,
          fmt::format("parameter {} occurs twice in the optimizer's groups", unishard::quote(fqn)));
  }
  Parameter parameter;
  parameter.fqn = fqn;
  parameter.elements = element_count(shape);
  parameter.shape = std::move(shape);
  parameter.group = group;
  parameters_.push_back(std::move(parameter));
  return parameters_.size() - 1;
}

void ParameterTable::add_piece(std::size_t parameter, const std::string& state, ViewPiece piece) {
  auto& states = parameters_.at(parameter).states;
  auto found = std::ranges::find(states, state, &StatePieces::state);
  if (found == states.end()) found = states.insert(states.end(), {state, {}, {}});
  if (found->shape) raise_other_scalar(parameters_[parameter].fqn, state, "a file of another rank");
  found->pieces.push_back(std::move(piece));
}

void ParameterTable::add_scalar(std::size_t parameter, const std::string& state,
                                const TensorView& view, const std::string& file) {
  const Parameter& known = parameters_.at(parameter);
  const auto found = std::ranges::find(known.states, state, &StatePieces::state);
  if (found == known.states.end()) return add_whole(parameter, state, view);
  const TensorView& first = found->pieces.front().view;
  const bool is_equal = found->shape && found->shape->empty() && first.dtype == view.dtype &&
                        sampled_bytes(first, 0, 1) == sampled_bytes(view, 0, 1);
  if (!is_equal) raise_other_scalar(known.fqn, state, file);
}

void ParameterTable::add_whole(std::size_t parameter, const std::string& state,
                               const TensorView& view) {
  parameters_.at(parameter).states.push_back(
      {state, {{{0, view.elements()}, view, 0}}, view.shape});
}

std::optional<std::size_t> ParameterTable::find(const std::string& fqn) const {
  const auto found = by_name_.find(fqn);
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

ElementRange stage3_range(std::uint64_t elements, std::uint64_t rank, std::uint64_t world_size) {
  const std::uint64_t piece = elements / world_size + (elements % world_size != 0 ? 1 : 0);
  const std::uint64_t begin = piece == 0 || rank > elements / piece ? elements : rank * piece;
  return {begin, begin + std::min(piece, elements - begin)};
}

void assemble(const Assembly& assembly, PiecedCatalog& out, Notes& notes) {
  Assembler(assembly, out, notes).run();
}

Json describe_groups(const Json& settings, const ParameterTable& parameters) {
  std::vector<Json> names(settings.is_array() ? settings.size() : 0, Json::array());
  for (const Parameter& parameter : parameters.all()) {
    if (parameter.group < 0) continue;
    const auto group = static_cast<std::size_t>(parameter.group);
    if (group >= names.size()) names.resize(group + 1, Json::array());
    names[group].push_back(parameter.fqn);
  }
  Json groups = Json::array();
  for (std::size_t g = 0; g < names.size(); ++g) {
    Json group = settings.is_array() && g < settings.size() ? settings[g] : Json::object();
    group["params"] = std::move(names[g]);
    groups.push_back(std::move(group));
  }
  return groups;
}

namespace {

bool lists_only_names(const Json& group) {
  return group.is_object() && group.contains("params") && group["params"].is_array() &&
         std::ranges::all_of(group["params"], &Json::is_string);
}

/// Adds the groups without trainable parameters that UniShard's section lists.
void restore_idle_groups(const Json& own, Catalog& catalog) {
  constexpr std::size_t kMostGroups = 1024;  // a file may hold any number
  const Json rows = own.value(kIdleGroups, Json());
  if (!rows.is_array() || rows.size() > kMostGroups || !catalog.groups.is_array()) return;
  for (const Json& row : rows) {
    const bool is_row = row.is_array() && row.size() == 2 && row[0].is_number_integer() &&
                        row[0] >= 0 && row[0] <= catalog.groups.size() && lists_only_names(row[1]);
    if (!is_row) return;
    const auto number = row[0].get<std::int32_t>();
    catalog.groups.insert(catalog.groups.begin() + number, row[1]);
    for (TensorInfo& tensor : catalog.tensors) {
      if (tensor.group >= number) ++tensor.group;
    }
  }
}

/// Adds the frozen parameters to the groups that UniShard's section lists, unless a group trains
/// others by now.
void restore_members(const Json& own, Json& groups) {
  if (!own.contains(kGroupMembers) || !groups.is_array()) return;
  const Json& members = own[kGroupMembers];
  if (!members.is_array() || members.size() != groups.size()) return;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::set<std::string_view> names;
    if (!members[g].is_array()) return;
    for (const Json& name : members[g]) {
      if (!name.is_string()) return;
      names.insert(name.get_ref<const std::string&>());
    }
    for (const Json& name : groups[g]["params"]) {
      if (!names.contains(name.get_ref<const std::string&>())) return;
    }
  }
  for (std::size_t g = 0; g < groups.size(); ++g) groups[g]["params"] = members[g];
}

/// Returns true when frozen parameters are in the module under their second names alone.
bool saves_no_frozen(const ModelFile& model, const Catalog& catalog) {
  if (!model.frozen_shapes.empty() || !model.frozen_fragments.empty()) return false;
  return std::ranges::any_of(model.aliases, [&](const auto& each) {
    const auto& [second, first] = each;
    const bool is_turned = std::ranges::any_of(catalog.aliases, [&](const Alias& alias) {
      return alias.fqn == first && alias.target == second;
    });
    return is_turned && std::ranges::any_of(catalog.tensors, [&](const TensorInfo& tensor) {
             return tensor.frozen && tensor.fqn == second;
           });
  });
}

}  // namespace

void take_run_facts(const ModelFile& model, Catalog& catalog) {
  catalog.data_position = model.data_position;
  catalog.scheduler = model.scheduler;
  catalog.config = model.config;
  catalog.client_state = model.client_state;
  if (model.own.contains("rng")) catalog.rng = model.own["rng"];
  catalog.producer = {{"library", "deepspeed"}};
  if (model.own.contains(kUncheckedInput)) catalog.producer[kUncheckedInput] = true;
  copy_file_records(model.own, catalog.producer);
  if (saves_no_frozen(model, catalog)) catalog.producer[std::string(kSavesNoFrozen)] = true;
  if (!model.version.empty()) catalog.producer["version"] = model.version;
}

void restore_groups(const ModelFile& model, Catalog& catalog) {
  restore_idle_groups(model.own, catalog);
  restore_members(model.own, catalog.groups);
}

ModulePart module_part_of(const ModelFile& model) {
  const Json& client = model.client_state;
  const Json lightning =
      client.is_object() ? client.value("pytorch-lightning_version", Json()) : Json();
  const bool has_wrapper =
      lightning.is_string() && lightning.get_ref<const std::string&>().starts_with("1.");
  return has_wrapper ? ModulePart::Replica : ModulePart::Model;
}

void keep_cut_patterns(Catalog& catalog, const Json& users) {
  Json& client = catalog.client_state;
  if (!users.is_null()) client[kCutPatterns] = users;
  if (!client.is_object() || !client.contains(kCutPatterns)) return;
  const Json& info = client[kCutPatterns];
  const bool has_patterns = std::ranges::any_of(
      info, [](const Json& value) { return value.is_array() && !value.empty(); });
  const Json map = info.is_object() ? info.value("affine_map", Json()) : Json();
  const bool has_map = map.is_object() && !map.value("params", Json()).empty();
  if (!has_patterns)
    erase_cut_patterns(client);
  else if (has_map)
    client[kCutPatterns].erase("affine_map");  // it tells of the ranks of this run only
}

std::int64_t choose_step(const std::vector<std::int64_t>& steps, const ModelFile& model,
                         const Catalog& catalog, Notes& notes) {
  const std::int64_t counted = std::max<std::int64_t>(0, model.global_steps - model.skipped_steps);
  if (steps.empty()) {
    const auto own = model.own.find("step");
    const bool is_count = own != model.own.end() && own->is_number_integer();
    return is_count ? own->get<std::int64_t>() : counted;
  }
  const auto [least, most] = std::ranges::minmax(steps);
  if (least != most) {
    notes.add(fmt::format("the optimizer's step differs between parameters: {} to {}; {} is kept",
                          least, most, most));
  }
  const bool is_the_start = most > counted && most - 1 == counted && counts_the_start(catalog);
  if (most != counted && !is_the_start) {
    notes.add(
        fmt::format("the optimizer counts {} steps, the run {} (global_steps - "
                    "skipped_steps); the optimizer's are kept",
                    most, counted));
  }
  return most;
}

namespace {

/// Returns whether all elements are equal, as a parameter that was never trained has them.
bool is_constant(const std::vector<double>& values) {
  return std::ranges::adjacent_find(values, std::ranges::not_equal_to()) == values.end();
}

/// Returns whether an element differs by more than two neighbours of bfloat16 do.
bool differ_beyond_rounding(const std::vector<double>& master, const std::vector<double>& weights) {
  constexpr double kNeighbours = 1.0 / 128;
  for (std::size_t i = 0; i < master.size(); ++i) {
    const double most = std::max(std::abs(master[i]), std::abs(weights[i]));
    if (std::abs(master[i] - weights[i]) > kNeighbours * most) return true;
  }
  return false;
}

/// Elements of a parameter that are compared: `range` of it is in `piece` from number `first` on.
struct ComparedPart {
  const TensorView* piece = nullptr;
  std::uint64_t first = 0;
  ElementRange range;
};

/// The first elements of the parameter, or the first and the last ones of every piece.
std::vector<ComparedPart> compared_parts(const std::vector<ViewPiece>& pieces, bool every_piece) {
  constexpr std::uint64_t kCompared = 64;
  std::vector<ComparedPart> parts;
  const auto add = [&](const ViewPiece& piece, std::uint64_t begin) {
    const std::uint64_t end = std::min(piece.range.end, begin + kCompared);
    parts.push_back({&piece.view, piece.first + (begin - piece.range.begin), {begin, end}});
  };
  if (!every_piece) {
    if (const ViewPiece* first = first_piece(pieces)) add(*first, 0);
    return parts;
  }
  for (const ViewPiece& piece : pieces) {
    if (piece.range.empty()) continue;
    add(piece, piece.range.begin);
    if (piece.range.size() > kCompared) add(piece, piece.range.end - kCompared);
  }
  return parts;
}

/// Adds one parameter to `result`.
void compare_parameter(const NamedView& entry, const std::vector<ViewPiece>& master,
                       bool every_piece, WeightComparison& result) {
  bool is_telling = false, is_foreign = false, differs = false;
  for (const ComparedPart& part : compared_parts(master, every_piece)) {
    if (info(part.piece->dtype).kind != Kind::Float || part.range.end > entry.view.elements())
      return;
    const std::vector<double> wide = floats(*part.piece, part.first, part.range.size());
    const std::vector<double> narrow = floats(entry.view, part.range.begin, part.range.size());
    const bool part_differs = !rounds_to(wide, entry.view.dtype, narrow);
    differs |= part_differs;
    is_telling |= !is_constant(wide) || !is_constant(narrow);
    is_foreign |= part_differs && differ_beyond_rounding(wide, narrow);
  }
  if (differs) result.differing.push_back(entry.name);
  if (is_telling) ++result.telling;
  if (is_telling && is_foreign) ++result.foreign;
}

}  // namespace

WeightComparison compare_weights(const std::vector<NamedView>& module,
                                 const ParameterTable& parameters, bool every_piece) {
  WeightComparison result;
  for (const NamedView& entry : module) {
    const auto found = parameters.find(entry.name);
    if (!found || entry.view.elements() == 0 || !entry.view.storage) continue;
    if (info(entry.view.dtype).kind != Kind::Float) continue;
    const auto& states = parameters.all()[*found].states;
    const auto master = std::ranges::find(states, state::kFp32, &StatePieces::state);
    if (master != states.end()) compare_parameter(entry, master->pieces, every_piece, result);
  }
  return result;
}

}  // namespace unishard::converters::deepspeed
