#include "formats/deepspeed/stage0.hpp"

#include "unishard/format/error.hpp"

#include "formats/deepspeed/expert_groups.hpp"
#include "formats/deepspeed/flat_groups.hpp"
#include "formats/deepspeed/slot_matcher.hpp"
#include "reading/parameter_shape.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <tuple>

namespace unishard::converters::deepspeed {
namespace {

constexpr std::string_view kNoNames =
    "load it with DeepSpeed and save it with ZeRO stage 1, whose files hold names";

/// A numbered parameter of the optimizer.
struct Slot {
  std::optional<TensorView> master;  ///< nullopt: the module has the only copy
  std::vector<FlatState> states;

  /// The parameter's shape: that of its master copy, or the one that its states tell.
  std::optional<Shape> shape() const {
    if (master) return master->shape;
    if (states.empty()) return std::nullopt;
    std::map<std::string, Shape> shapes;
    for (const FlatState& state : states) shapes.emplace(state.name, state.view.shape);
    return parameter_shape(shapes);
  }
};
using Slots = std::vector<std::vector<Slot>>;  // by group

/// Parameters of the module in its order, without buffers and second names.
std::vector<const NamedView*> candidates_of(const ModelFile& model) {
  std::set<std::string_view> others;
  if (model.buffer_names) others.insert(model.buffer_names->begin(), model.buffer_names->end());
  for (const auto& [second, first] : model.aliases) others.insert(second);
  std::vector<const NamedView*> candidates;
  for (const NamedView& entry : model.module) {
    if (!others.contains(entry.name) && info(entry.view.dtype).kind == Kind::Float)
      candidates.push_back(&entry);
  }
  return candidates;
}

/// Returns true for what DeepSpeed gives Muon: matrices that are neither embeddings nor heads by
/// their names.
bool is_hidden_matrix(const NamedView& entry) {
  std::string name = entry.name;
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  return entry.view.shape.size() >= 2 && name.find("embed") == name.npos &&
         name.find("lm_head") == name.npos;
}

/// Puts Muon's matrices into DeepSpeed's order, larger shapes first, before all others.
void sort_for_muon(std::vector<const NamedView*>& candidates) {
  const auto others = std::ranges::stable_partition(
      candidates, [](const NamedView* entry) { return is_hidden_matrix(*entry); });
  std::stable_sort(candidates.begin(), others.begin(), [](const NamedView* a, const NamedView* b) {
    return a->view.shape > b->view.shape;
  });
}

/// Returns the number of entries of any type that are neither buffers nor second names.
std::size_t count_entries(const ModelFile& model) {
  std::set<std::string_view> others;
  if (model.buffer_names) others.insert(model.buffer_names->begin(), model.buffer_names->end());
  for (const auto& [second, first] : model.aliases) others.insert(second);
  return static_cast<std::size_t>(std::ranges::count_if(
      model.module, [&](const NamedView& entry) { return !others.contains(entry.name); }));
}

bool all_equal(const std::vector<double>& numbers) {
  return std::ranges::adjacent_find(numbers, std::ranges::not_equal_to()) == numbers.end();
}

/// Returns true when the weights are consistent with the master copy, that is, the master rounds to
/// them; or, without a master copy, with the moments: weights that are all equal, as initialised,
/// were not changed by moments that differ.
bool values_fit(const Slot& slot, const TensorView& weights) {
  constexpr std::uint64_t kCompared = 1024;
  const std::uint64_t count = std::min(kCompared, weights.elements());
  const std::vector<double> narrow = floats(weights, 0, count);
  if (slot.master) return rounds_to(floats(*slot.master, 0, count), weights.dtype, narrow);
  if (count < 2 || !all_equal(narrow)) return true;
  return std::ranges::all_of(slot.states, [&](const FlatState& state) {
    return state.view.shape != weights.shape || info(state.view.dtype).kind != Kind::Float ||
           all_equal(floats(state.view, 0, count));
  });
}

class Stage0Reader {
 public:
  Stage0Reader(const TorchFile& file, const ModelFile& model, bool is_whole, Notes& notes)
      : file_(file),
        notes_(notes),
        is_whole_(is_whole),
        candidates_(candidates_of(model)),
        entries_(count_entries(model)) {
    if (model.own.contains("parameters")) read_names(model.own["parameters"]);
  }

  Stage0Optimizer read(Value optimizer) {
    out_.is_there = true;
    const auto wrapped = present(optimizer, "optimizer_state_dict");
    const Value base = wrapped ? *wrapped : optimizer;
    out_.settings = read_group_settings(file_, base.at("param_groups"), members_, notes_);
    refuse_doubled_numbers();
    read_scaler(optimizer);
    if (has_muon() && !named_) sort_for_muon(candidates_);
    if (const auto flat = present(optimizer, "fp32_groups_flat")) {
      read_flat(base.at("state"), *flat);
    } else {
      read_shaped(base.at("state"), present(optimizer, "fp32_groups"));
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view problem) const {
    raise(ErrorCode::Unsupported,
          fmt::format("{}: {}; ZeRO stage 0 stores optimizer states without names", file_.name(),
                      problem),
          std::string(kNoNames));
  }

  /// torch gives each parameter of an optimizer a number of its own.
  void refuse_doubled_numbers() const {
    std::set<std::uint64_t> seen;
    for (const auto& group : members_) {
      for (const std::uint64_t number : group) {
        if (seen.insert(number).second) continue;
        raise(ErrorCode::Corrupt,
              fmt::format("{}: the optimizer's groups list parameter number {} twice", file_.name(),
                          number),
              "use another checkpoint");
      }
    }
  }

  /// The fqns of every group, when UniShard's sink wrote them; those of all expert ranks.
  void read_names(const Json& groups) {
    std::map<std::string, std::size_t> index;
    for (std::size_t c = 0; c < candidates_.size(); ++c) index.emplace(candidates_[c]->name, c);
    named_.emplace();
    for (const Json& group : groups) {
      auto& names = named_->emplace_back();
      if (!group.is_array()) refuse("unishard.parameters is not a list of lists");
      for (const Json& name : group) {
        const std::string fqn = name.is_string() ? name.get<std::string>() : std::string();
        const auto found = index.find(fqn);
        if (found == index.end() && split_expert(fqn)) continue;  // of another expert rank
        if (found == index.end()) {
          if (!fqn.empty())
            notes_.lose({Role::Weight, fqn,
                         "unishard.parameters lists it as trained, and the module lacks it"});
          refuse("unishard.parameters names a parameter that the module lacks");
        }
        names.push_back(found->second);
        index.erase(found);
      }
    }
  }

  void read_scaler(Value optimizer) {
    if (!present(optimizer, "cur_scale")) return;
    for (const char* key : {"dynamic_loss_scale", "cur_scale", "cur_iter", "last_overflow_iter",
                            "scale_factor", "scale_window"}) {
      if (const auto value = present(optimizer, key))
        out_.loss_scaler[key] = plain_json(file_, *value, key, notes_);
    }
  }

  void add_step(const std::optional<std::int64_t>& step) {
    if (step) out_.steps.push_back(*step);
  }

  /// FP16_Optimizer has one flat vector per group, and the module's 16-bit weights lie in such
  /// vectors too.
  void read_flat(Value state, Value masters) {
    OptimizerFile rank;
    rank.name = file_.name();
    ShapeGroups shapes;
    if (masters.size() != out_.settings.size())
      notes_.lose(lost_settings(file_.name(), masters.size(), out_.settings));
    for (std::size_t g = 0; g < masters.size(); ++g) {
      FlatGroup group;
      group.master = {
          std::string(state::kFp32), tensor_of(file_, masters[g], "fp32_groups_flat"), {}};
      if (const auto entries = state_of(state, g)) read_flat_states(file_, *entries, group, notes_);
      add_step(group.step);
      shapes.push_back(flat_order(g, group.master.view, masters.size() == 1));
      for (const NamedShape& named : shapes.back())
        out_.parameters.add(named.fqn, named.shape, static_cast<std::int32_t>(g));
      rank.groups.push_back(std::move(group));
    }
    ConcatenatedGroups groups(shapes, {}, out_.parameters);
    groups.add_rank(rank);
    groups.check_ends(1, file_.name());
  }

  /// Returns the parameters of flat group `g`: those in the storage that has its size and rounded
  /// values.
  std::vector<NamedShape> flat_order(std::size_t g, const TensorView& master, bool is_only_group) {
    if (named_ && g < named_->size()) {
      std::vector<const NamedView*> entries;
      for (const std::size_t candidate : (*named_)[g]) entries.push_back(candidates_[candidate]);
      if (tiles(entries, master)) return shapes_of(entries);
    }
    std::map<std::string, std::vector<const NamedView*>> storages;
    for (const NamedView* entry : candidates_) storages[entry->view.storage_key].push_back(entry);
    for (auto& [key, entries] : storages) {
      std::ranges::stable_sort(entries, {}, [](const NamedView* e) { return e->view.offset; });
      if (used_.contains(key) || !tiles(entries, master)) continue;
      used_.insert(key);
      return shapes_of(entries);
    }
    if (is_only_group && tiles(candidates_, master)) return shapes_of(candidates_);
    refuse(fmt::format("no run of the module's weights is the flat fp32 vector of group {}", g));
  }

  static bool tiles(const std::vector<const NamedView*>& entries, const TensorView& master) {
    constexpr std::uint64_t kCompared = 64;
    std::uint64_t at = 0;
    for (const NamedView* entry : entries) {
      const std::uint64_t elements = entry->view.elements();
      if (elements > master.elements() - at) return false;
      const std::uint64_t count = std::min(kCompared, elements);
      if (!rounds_to(floats(master, at, count), entry->view.dtype, floats(entry->view, 0, count)))
        return false;
      at += elements;
    }
    return at == master.elements();
  }

  static std::vector<NamedShape> shapes_of(const std::vector<const NamedView*>& entries) {
    std::vector<NamedShape> shapes;
    for (const NamedView* entry : entries) shapes.push_back({entry->name, entry->view.shape});
    return shapes;
  }

  /// Reads states in the parameters' own shapes, with (FP16_UnfusedOptimizer) or without master
  /// copies.
  void read_shaped(Value state, std::optional<Value> masters) {
    lose_unlisted_states(state);
    if (masters) require_listed_masters(*masters);
    const Slots slots = read_slots(state, masters);
    const auto chosen = choose(slots);
    for (std::size_t g = 0; g < slots.size(); ++g) {
      for (std::size_t k = 0; k < slots[g].size(); ++k)
        add_parameter(*candidates_[chosen[g][k]], slots[g][k], static_cast<std::int32_t>(g));
    }
  }

  /// Nothing tells of which parameter a state is whose number no group lists.
  void lose_unlisted_states(Value state) {
    std::set<std::uint64_t> listed;
    for (const auto& group : members_) listed.insert(group.begin(), group.end());
    std::size_t unlisted = 0;
    for (std::size_t i = 0; i < state.pair_count(); ++i) {
      const Value key = state.key(i);
      const bool is_number = key.is(NodeKind::Int) && key.integer() >= 0;
      if (is_number && !listed.contains(static_cast<std::uint64_t>(key.integer()))) ++unlisted;
    }
    if (unlisted == 0) return;
    notes_.lose({.role = Role::Optimizer,
                 .name = fmt::format("states of {} of the optimizer's numbers", unlisted),
                 .why = fmt::format("no parameter group of {} lists them", file_.name()),
                 .is_broken = true});
  }

  /// Masters are in the order of their group's numbers. Where there are more, or fewer, nothing
  /// tells which is whose.
  void require_listed_masters(Value masters) const {
    bool fit = masters.size() == members_.size();
    for (std::size_t g = 0; fit && g < masters.size(); ++g)
      fit = masters[g].size() == members_[g].size();
    if (fit) return;
    std::size_t listed = 0, there = 0;
    for (const auto& group : members_) listed += group.size();
    for (std::size_t g = 0; g < masters.size(); ++g) there += masters[g].size();
    raise(ErrorCode::Corrupt,
          fmt::format("{}: its parameter groups list {} parameters in {} groups, and it has the "
                      "fp32 masters of {} in {}: nothing tells which master is whose",
                      file_.name(), listed, members_.size(), there, masters.size()),
          "use another checkpoint");
  }

  Slots read_slots(Value state, std::optional<Value> masters) {
    Slots slots;
    for (std::size_t g = 0; g < members_.size(); ++g) {
      slots.emplace_back();
      for (std::size_t k = 0; k < members_[g].size(); ++k) {
        Slot slot;
        if (masters) slot.master = tensor_of(file_, (*masters)[g][k], "fp32_groups");
        std::optional<std::int64_t> step;
        if (const auto entries = state_of(state, members_[g][k]))
          read_states(file_, *entries, std::nullopt, slot.states, step, notes_);
        add_step(step);
        slots.back().push_back(std::move(slot));
      }
    }
    return slots;
  }

  /// result[group][slot]: index into candidates_.
  std::vector<std::vector<std::size_t>> choose(const Slots& slots) {
    std::vector<std::size_t> sizes;
    for (const auto& group : slots) sizes.push_back(group.size());
    const auto shape_fits = [&](std::size_t g, std::size_t k, std::size_t candidate) {
      if (!is_of_group(g, candidate)) return false;
      const auto shape = slots[g][k].shape();
      return !shape || *shape == candidates_[candidate]->view.shape;
    };
    if (named_) {
      return take_names(sizes, [&](std::size_t g, std::size_t k, std::size_t candidate) {
        const auto& master = slots[g][k].master;
        return !master || master->shape == candidates_[candidate]->view.shape;
      });
    }
    lose_absent_weights(slots);
    doubt_shapes(slots);
    const SlotMatcher by_shape(sizes, candidates_.size(), shape_fits);
    if (by_shape.outcome() == SlotMatcher::Outcome::One) return by_shape.solution();
    if (by_shape.outcome() == SlotMatcher::Outcome::None) {
      refuse(
          "no parameters of the module in their order have the shapes of the optimizer's states");
    }
    std::map<std::tuple<std::size_t, std::size_t, std::size_t>, bool> known;
    const SlotMatcher by_value(sizes, candidates_.size(),
                               [&](std::size_t g, std::size_t k, std::size_t c) {
                                 if (!shape_fits(g, k, c)) return false;
                                 const auto [found, is_new] = known.try_emplace({g, k, c}, false);
                                 if (is_new)
                                   found->second = values_fit(slots[g][k], candidates_[c]->view);
                                 return found->second;
                               });
    if (by_value.outcome() == SlotMatcher::Outcome::One) {
      notes_.add(
          "stage 0 stores optimizer states without names: several orders fit the shapes, and "
          "the values of the weights decided");
      return by_value.solution();
    }
    refuse_choice(by_value.outcome() == SlotMatcher::Outcome::Several ? by_value : by_shape);
  }

  bool has_muon() const {
    return std::ranges::any_of(out_.settings,
                               [](const Json& group) { return group.contains("use_muon"); });
  }

  /// In a run with experts, some groups have experts only, and the others have none; so do those of
  /// Muon and their matrices.
  bool is_of_group(std::size_t group, std::size_t candidate) const {
    if (has_muon() && (out_.settings.at(group).value("use_muon", Json()) == true) !=
                          is_hidden_matrix(*candidates_[candidate]))
      return false;
    const auto has_experts = [&](const Json& settings) {
      return expert_ranks_of(settings, file_.name()) > 0;
    };
    return std::ranges::none_of(out_.settings, has_experts) ||
           has_experts(out_.settings.at(group)) ==
               split_expert(candidates_[candidate]->name).has_value();
  }

  /// More parameters with states than entries: the module lacks weights that were trained. An entry
  /// that is no tensor is a loss already.
  void lose_absent_weights(const Slots& slots) {
    std::size_t trained = 0;
    for (const auto& group : slots) {
      trained += static_cast<std::size_t>(std::ranges::count_if(
          group, [](const Slot& slot) { return slot.master || !slot.states.empty(); }));
    }
    const bool is_known = std::ranges::any_of(
        notes_.losses(), [](const Loss& loss) { return loss.role == Role::Weight; });
    if (trained <= entries_ || is_known) return;
    notes_.lose({Role::Weight,
                 fmt::format("{} of {} trained parameters", trained - entries_, trained),
                 "the optimizer has their states, and the module lacks them"});
  }

  /// More states of a shape than the module has tensors of it: a weight may be missing. Some
  /// optimizers keep states of other shapes than their parameters'.
  void doubt_shapes(const Slots& slots) {
    const bool is_known = std::ranges::any_of(
        notes_.losses(), [](const Loss& loss) { return loss.role == Role::Weight; });
    if (is_known) return;
    std::map<Shape, std::size_t> left;
    for (const NamedView* entry : candidates_) ++left[entry->view.shape];
    for (const auto& group : slots) {
      for (const Slot& slot : group) {
        const auto shape = slot.shape();
        if (!shape || left[*shape]-- > 0) continue;
        return notes_.add(fmt::format(
            "the optimizer has states of more parameters of size ({}) than the module has: a "
            "weight that was trained may be missing in it",
            fmt::join(*shape, ", ")));
      }
    }
  }

  template <class Fits>
  std::vector<std::vector<std::size_t>> take_names(const std::vector<std::size_t>& sizes,
                                                   const Fits& fits) const {
    bool all_fit = named_->size() == sizes.size();
    for (std::size_t g = 0; all_fit && g < sizes.size(); ++g) {
      all_fit = (*named_)[g].size() == sizes[g];
      for (std::size_t k = 0; all_fit && k < sizes[g]; ++k) all_fit = fits(g, k, (*named_)[g][k]);
    }
    if (!all_fit) refuse("unishard.parameters does not fit the optimizer's states");
    return *named_;
  }

  [[noreturn]] void refuse_choice(const SlotMatcher& matcher) const {
    const auto one = matcher.solution(), other = matcher.solution(true);
    for (std::size_t g = 0; g < one.size(); ++g) {
      for (std::size_t k = 0; k < one[g].size(); ++k) {
        if (one[g][k] == other[g][k]) continue;
        refuse(fmt::format("state {} of group {} can be that of {} or of {}", k, g,
                           unishard::quote(candidates_[one[g][k]]->name),
                           unishard::quote(candidates_[other[g][k]]->name)));
      }
    }
    refuse("the optimizer's states can belong to several parameters");
  }

  void add_parameter(const NamedView& entry, const Slot& slot, std::int32_t group) {
    const std::size_t index = out_.parameters.add(entry.name, entry.view.shape, group);
    const auto add = [&](const std::string& state, const TensorView& view) {
      if (view.shape != entry.view.shape && is_whole_) {
        return out_.parameters.add_whole(index, state, view);
      }
      if (view.shape != entry.view.shape) {
        return notes_.lose({Role::State, fmt::format("{} of {}", state, entry.name),
                            "it has not its parameter's shape, and tensor-parallel ranks cannot "
                            "be joined",
                            view.shape});
      }
      out_.parameters.add_piece(index, state, {{0, view.elements()}, view, 0});
    };
    // Without a master copy the module's weights are the parameter, in whatever precision.
    const bool is_wide = size_of(entry.view.dtype) >= size_of(DType::Float32);
    add(std::string(slot.master || is_wide ? state::kFp32 : state::kWeights),
        slot.master ? *slot.master : entry.view);
    for (const FlatState& state : slot.states) add(state.name, state.view);
  }

  const TorchFile& file_;
  Notes& notes_;
  const bool is_whole_;
  std::vector<const NamedView*> candidates_;
  const std::size_t entries_;
  std::vector<std::vector<std::uint64_t>> members_;
  std::optional<std::vector<std::vector<std::size_t>>> named_;  // candidates of each group, if told
  std::set<std::string> used_;  // storages that a flat group was found in
  Stage0Optimizer out_;
};

}  // namespace

Stage0Optimizer read_stage0(const TorchFile& file, const ModelFile& model, bool is_whole,
                            Notes& notes) {
  const auto optimizer = present(file.root(), "optimizer");
  if (!optimizer) return {};
  const bool has_masters =
      present(*optimizer, "fp32_groups_flat") || present(*optimizer, "fp32_groups");
  try {
    return Stage0Reader(file, model, is_whole, notes).read(*optimizer);
  } catch (const Error& error) {
    // Without masters, the module has the weights, which do not need the optimizer.
    if (error.code() != ErrorCode::Unsupported || has_masters) throw;
    notes.lose({Role::Optimizer, "optimizer", error.what()});
    return {};
  }
}

}  // namespace unishard::converters::deepspeed
