#include "workflows/conversion_plan.hpp"

#include "unishard/converters/cut_patterns.hpp"
#include "unishard/converters/dequantize.hpp"
#include "unishard/converters/expert_ranks.hpp"
#include "unishard/converters/extra_state.hpp"
#include "unishard/converters/guessed_ties.hpp"
#include "unishard/converters/optimizer_scalars.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"
#include "unishard/format/version.hpp"

#include "workflows/client_values.hpp"
#include "workflows/name_layouts.hpp"
#include "workflows/name_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace unishard::tools {
namespace {

/// Smaller is preferred; nullopt for optimizer states.
std::optional<int> preference(const TensorInfo& tensor) {
  if (tensor.state == state::kFp32) return 0;
  if (tensor.state == state::kWeights) return 1;
  if (tensor.state == state::kBuffer) return 2;
  return std::nullopt;
}

DType consolidated_dtype(const TensorInfo& tensor, const std::optional<DType>& wanted) {
  const Kind kind = info(tensor.dtype).kind;
  if (kind != Kind::Float) return tensor.dtype;
  if (wanted) return *wanted;
  return tensor.frozen ? tensor.dtype : DType::Float32;
}

/// Whether a model's file holds nothing of a tensor: one of a second model, or of an average of the
/// weights.
bool is_beside_model(const TensorInfo& tensor) {
  return tensor.state == converters::kExtraState && !tensor.fqn.starts_with("client_state.");
}

void note_tensors_beside(const std::vector<std::string_view>& others,
                         std::vector<std::string>& notes) {
  if (others.empty()) return;
  notes.push_back(
      fmt::format("{} tensors beside this model and its optimizer, perhaps of another ({} first)",
                  others.size(), quote(others.front())));
}

std::vector<std::size_t> choose(const Catalog& catalog, const ConvertOptions& options,
                                std::vector<std::string>& notes) {
  std::vector<bool> stands(catalog.tensors.size());
  for (const std::size_t i : model_tensors(catalog)) stands[i] = true;
  std::size_t filtered = 0, states = 0;
  std::vector<std::string_view> others;
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    if (!is_wanted(catalog.tensors[i].fqn, options.only)) {
      ++filtered;
    } else if (options.weights_only && is_beside_model(catalog.tensors[i])) {
      others.push_back(catalog.tensors[i].fqn);
    } else if (options.weights_only && !stands[i]) {
      ++states;
    } else {
      chosen.push_back(i);
    }
  }
  if (filtered > 0) notes.push_back(fmt::format("{} tensors that --only leaves out", filtered));
  if (states > 0)
    notes.push_back(fmt::format("{} optimizer states and other copies (--weights-only)", states));
  note_tensors_beside(others, notes);
  return chosen;
}

/// Returns the catalog with the names that the patterns want: a tied parameter of which they want
/// the second name alone is called by that, and its first name is gone.
Catalog with_wanted_names(Catalog catalog, const std::vector<std::string>& only) {
  std::map<std::string, std::string> promoted;  // first name -> second name
  for (const Alias& alias : catalog.aliases) {
    if (!is_wanted(alias.target, only) && is_wanted(alias.fqn, only))
      promoted.emplace(alias.target, alias.fqn);
  }
  std::erase_if(catalog.aliases, [&](const Alias& alias) {
    const auto found = promoted.find(alias.target);
    return !is_wanted(alias.fqn, only) || (found != promoted.end() && found->second == alias.fqn);
  });
  const auto rename = [&](std::string& name) {
    if (const auto found = promoted.find(name); found != promoted.end()) name = found->second;
  };
  for (TensorInfo& tensor : catalog.tensors) rename(tensor.fqn);
  for (Alias& alias : catalog.aliases) rename(alias.target);
  for (UnitLayout& unit : catalog.units) std::ranges::for_each(unit.fqns, rename);
  catalog.client_state =
      converters::rename_optimizer_scalars(catalog.client_state, [&](std::string name) {
        rename(name);
        return name;
      });
  if (!catalog.groups.is_array()) return catalog;
  for (Json& group : catalog.groups) {
    if (!group.is_object() || !group.contains("params") || !group["params"].is_array()) continue;
    for (Json& name : group["params"]) {
      if (name.is_string()) rename(name.get_ref<std::string&>());
    }
  }
  return catalog;
}

/// Drops the parameters that are left out. Those that have no tensor at all keep their places, by
/// which an optimizer numbers them.
void rename_groups(Json& groups, Renamer& rename, const std::set<std::string>& kept,
                   const std::set<std::string_view>& all) {
  if (!groups.is_array()) return;
  for (Json& group : groups) {
    if (!group.is_object() || !group.contains("params") || !group["params"].is_array()) continue;
    Json params = Json::array();
    for (const Json& fqn : group["params"]) {
      if (!fqn.is_string()) continue;
      const auto& old = fqn.get_ref<const std::string&>();
      std::string name = rename(old);
      if (kept.contains(name) || !all.contains(old)) params.push_back(std::move(name));
    }
    group["params"] = std::move(params);
  }
}

/// Gives each group without a list of its parameters those that say so, in the order of the
/// tensors, which a format may sort.
void list_parameters(Catalog& catalog) {
  if (!catalog.groups.is_array()) return;
  std::vector<Json> members(catalog.groups.size(), Json::array());
  std::set<std::string_view> listed;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (std::cmp_greater_equal(tensor.group, 0) && std::cmp_less(tensor.group, members.size()) &&
        listed.insert(tensor.fqn).second)
      members[static_cast<std::size_t>(tensor.group)].push_back(tensor.fqn);
  }
  for (std::size_t g = 0; g < members.size(); ++g) {
    Json& group = catalog.groups[g];
    if (group.is_object() && !group.contains("params") && !members[g].empty())
      group["params"] = std::move(members[g]);
  }
}

/// Aliases, units and groups of the tensors that are left, under their new names.
void take_surroundings(const Catalog& from, Renamer& rename, const ConvertOptions& options,
                       ConversionPlan& plan) {
  Catalog& to = plan.target;
  std::set<std::string> kept;
  for (const TensorInfo& tensor : to.tensors) kept.insert(tensor.fqn);
  for (const Alias& alias : from.aliases) {
    const Alias renamed{rename(alias.fqn), rename(alias.target)};
    if (kept.contains(renamed.target)) to.aliases.push_back(renamed);
  }
  if (options.weights_only) {
    converters::copy_descriptions(from, to, std::ref(rename));
    for (const auto& [name, section] : {std::pair{"parameter groups", &from.groups},
                                        {"scheduler", &from.scheduler},
                                        {"client state", &from.client_state}}) {
      if (!section->is_null()) plan.notes.push_back(fmt::format("{} (--weights-only)", name));
    }
    return;
  }
  to.groups = from.groups;
  std::set<std::string_view> all;
  for (const TensorInfo& tensor : from.tensors) all.insert(tensor.fqn);
  for (const Alias& alias : from.aliases) all.insert(alias.fqn);
  rename_groups(to.groups, rename, kept, all);
  list_parameters(to);
  for (const UnitLayout& unit : from.units) {
    UnitLayout renamed{unit.name, {}};
    for (const std::string& fqn : unit.fqns) {
      if (std::string name = rename(fqn); kept.contains(name))
        renamed.fqns.push_back(std::move(name));
    }
    if (!renamed.fqns.empty()) to.units.push_back(std::move(renamed));
  }
  to.scheduler = from.scheduler;
  to.loss_scaler = from.loss_scaler;
  to.data_position = from.data_position;
  to.rng = from.rng;
  to.client_state =
      converters::rename_optimizer_scalars(from.client_state, [&](const std::string& old) {
        std::string name = rename(old);
        return kept.contains(name) || !all.contains(old) ? name : std::string();
      });
  to.config = from.config;
  to.producer = from.producer;
  converters::copy_descriptions(from, to, std::ref(rename));
}

/// Names what a model's file holds nothing of.
void note_other_tensors(const Catalog& catalog, std::vector<std::string>& notes) {
  std::vector<std::string_view> others;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (is_beside_model(tensor)) others.push_back(tensor.fqn);
  }
  note_tensors_beside(others, notes);
  if (auto note = note_client_tensors(catalog.client_state)) notes.push_back(std::move(*note));
}

std::vector<RenameRule> all_rules(const Catalog& catalog, const std::string& layout,
                                  const std::vector<RenameRule>& renames) {
  std::vector<RenameRule> rules;
  if (!layout.empty()) rules = layout_rules(layout, catalog);
  rules.insert(rules.end(), renames.begin(), renames.end());
  return rules;
}

/// Throws: InvalidArgument where the rules give two tensors of `from` one name.
void require_own_names(const ConversionPlan& plan, const Catalog& from) {
  using Name = std::pair<std::string_view, std::string_view>;  // fqn, state
  std::map<Name, std::string_view> sources;
  for (std::size_t i = 0; i < plan.tensor_map.size(); ++i) {
    const TensorInfo& made = plan.target.tensors[i];
    const std::string& name = from.tensors[plan.tensor_map[i]].fqn;
    const auto [other, is_new] = sources.emplace(Name(made.fqn, made.state), name);
    if (is_new) continue;
    raise(ErrorCode::InvalidArgument,
          fmt::format("--rename gives {} and {} one name: {}", other->second, name, made.label()));
  }
}

/// Says which patterns of --only no name has, where others have some.
void note_unmatched(const Catalog& from, const std::vector<std::string>& only,
                    ConversionPlan& plan) {
  for (const std::string& pattern : only) {
    const auto has = [&](const std::string& name) { return is_wanted(name, {pattern}); };
    if (std::ranges::any_of(from.tensors, has, &TensorInfo::fqn) ||
        std::ranges::any_of(from.aliases, has, &Alias::fqn))
      continue;
    plan.remarks.push_back(fmt::format("--only {}: no tensor has such a name", pattern));
  }
}

/// `given` are the last rules of `rename`, those of the user's.
void note_unused(const Renamer& rename, const std::vector<RenameRule>& given,
                 ConversionPlan& plan) {
  for (const RenameRule& rule : rename.unused(plan.renames.size() - given.size()))
    plan.remarks.push_back(
        fmt::format("--rename {}={}: no name is changed by this rule", rule.from, rule.to));
}

bool changes_names(const ConversionPlan& plan, const Catalog& from) {
  for (std::size_t i = 0; i < plan.tensor_map.size(); ++i) {
    if (plan.target.tensors[i].fqn != from.tensors[plan.tensor_map[i]].fqn) return true;
  }
  return false;
}

TensorInfo target_tensor(TensorInfo tensor, Renamer& rename, const ConvertOptions& options) {
  // The client state names its tensors by their places, which are no names of parameters.
  if (tensor.state != converters::kExtraState) tensor.fqn = rename(tensor.fqn);
  if (options.weights_only) {
    tensor.state = state::kWeights;
    tensor.group = -1;
    tensor.frozen = tensor.derived = false;
  }
  const bool is_weight = tensor.state == state::kWeights && info(tensor.dtype).kind == Kind::Float;
  if (options.dtype && is_weight && tensor.dtype != *options.dtype) {
    tensor.dtype = *options.dtype;
    tensor.derived = false;
    tensor.crc64.reset();
    tensor.stats.reset();
  }
  return tensor;
}

/// Makes a tensor of its own of each second name that was taken from equal bytes alone, which a
/// frozen copy has too (kGuessedTies). A folder of DCP tells no ties.
void write_guessed_names(const converters::Source& source, Renamer& rename, ConversionPlan& plan) {
  const Json& producer = source.catalog().producer;
  std::set<std::string> guessed;
  if (producer.is_object() && producer.contains(converters::kGuessedTies)) {
    for (const Json& name : producer[converters::kGuessedTies])
      if (name.is_string()) guessed.insert(rename(name.get<std::string>()));
  }
  const bool is_all = source.format() == "dcp";
  for (const Alias& alias : std::exchange(plan.target.aliases, {})) {
    if (!is_all && !guessed.contains(alias.fqn)) {
      plan.target.aliases.push_back(alias);
      continue;
    }
    const auto found = std::ranges::find(plan.target.tensors, alias.target, &TensorInfo::fqn);
    TensorInfo copy = *found;
    copy.fqn = alias.fqn;
    plan.tensor_map.push_back(
        plan.tensor_map[static_cast<std::size_t>(found - plan.target.tensors.begin())]);
    plan.target.tensors.push_back(std::move(copy));
  }
}

}  // namespace

std::vector<std::size_t> model_tensors(const Catalog& catalog) {
  std::vector<std::size_t> chosen;
  std::unordered_map<std::string_view, std::size_t> place;
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    const TensorInfo& tensor = catalog.tensors[i];
    const std::optional<int> rank = preference(tensor);
    if (!rank) continue;
    const auto [found, is_new] = place.emplace(tensor.fqn, chosen.size());
    if (is_new) {
      chosen.push_back(i);
    } else if (rank < preference(catalog.tensors[chosen[found->second]])) {
      chosen[found->second] = i;
    }
  }
  return chosen;
}

void require_placement(std::optional<std::uint32_t> world_size,
                       std::optional<std::uint32_t> stage) {
  if (const std::uint32_t ranks = world_size.value_or(1); ranks == 0 || ranks > limits::kWorldSize)
    raise(ErrorCode::InvalidArgument,
          fmt::format("--world-size {} is not from 1 to {}", ranks, limits::kWorldSize));
  if (const std::uint32_t chosen = stage.value_or(0); chosen > 3)
    raise(ErrorCode::InvalidArgument, fmt::format("--stage {} is not from 0 to 3", chosen));
}

ConversionPlan plan_convert(const converters::Source& source, const ConvertOptions& options) {
  require_placement(options.world_size, options.stage);
  std::optional<Catalog> chosen_names;
  if (!options.only.empty()) chosen_names = with_wanted_names(source.catalog(), options.only);
  const Catalog& from = chosen_names ? *chosen_names : source.catalog();
  ConversionPlan plan;
  plan.renames = all_rules(source.catalog(), options.layout, options.renames);
  Renamer rename(plan.renames);
  plan.tensor_map = choose(from, options, plan.notes);
  if (plan.tensor_map.empty())
    raise(ErrorCode::InvalidArgument, "no tensor is left to convert",
          "see `unishard inspect` for the names");
  note_unmatched(source.catalog(), options.only, plan);
  plan.target.step = from.step;
  plan.target.world_size = options.world_size.value_or(from.world_size);
  plan.target.stage = options.stage.value_or(from.stage);
  for (const std::size_t index : plan.tensor_map)
    plan.target.tensors.push_back(target_tensor(from.tensors[index], rename, options));
  require_own_names(plan, from);
  const auto is_weight = [](const TensorInfo& tensor) { return tensor.state == state::kWeights; };
  if (options.dtype && std::ranges::none_of(plan.target.tensors, is_weight))
    raise(ErrorCode::InvalidArgument,
          "--dtype has nothing to change: no tensor has the state weights",
          "pass --weights-only for a model without masters and optimizer states");
  take_surroundings(from, rename, options, plan);
  if (options.weights_only) write_guessed_names(source, rename, plan);
  if (options.expert_ranks) converters::set_expert_ranks(plan.target, *options.expert_ranks);
  note_unused(rename, options.renames, plan);
  if (changes_names(plan, from) && converters::erase_cut_patterns(plan.target.client_state)) {
    plan.notes.emplace_back(
        "client_state.universal_checkpoint_info is left out: it tells tensor-parallel ranks how to "
        "cut parameters by their old names");
  }
  if (!options.cut_patterns.is_null())
    converters::set_cut_patterns(plan.target, options.cut_patterns);
  validate(plan.target, "the result");
  return plan;
}

ConversionPlan plan_consolidate(const converters::Source& source,
                                const ConsolidateOptions& options) {
  const Catalog& catalog = source.catalog();
  ConversionPlan plan;
  plan.renames = all_rules(catalog, options.layout, options.renames);
  Renamer rename(plan.renames);
  plan.target.step = catalog.step;
  for (const std::size_t index : model_tensors(catalog)) {
    const TensorInfo& from = catalog.tensors[index];
    if (from.frozen && options.exclude_frozen) {
      ++plan.frozen_left_out;
      continue;
    }
    TensorInfo to;
    to.fqn = rename(from.fqn);
    to.state = state::kWeights;
    to.dtype = consolidated_dtype(from, options.dtype);
    to.shape = from.shape;
    plan.target.tensors.push_back(std::move(to));
    plan.tensor_map.push_back(index);
  }
  if (plan.target.tensors.empty()) {
    raise(ErrorCode::Mismatch, "there is no parameter to write",
          plan.frozen_left_out > 0
              ? "all parameters are frozen: leave out --exclude_frozen_parameters"
              : "the checkpoint holds no model weights; `unishard inspect` lists what it holds");
  }
  require_own_names(plan, catalog);
  std::set<std::string_view> kept;
  for (const TensorInfo& tensor : plan.target.tensors) kept.insert(tensor.fqn);
  for (const Alias& alias : catalog.aliases) {
    const std::string target = rename(alias.target);
    if (kept.contains(target)) plan.target.aliases.push_back({rename(alias.fqn), target});
  }
  write_guessed_names(source, rename, plan);
  note_unused(rename, options.renames, plan);
  validate(plan.target, "the result");
  note_other_tensors(catalog, plan.notes);
  plan.metadata = {{"unishard.version", std::string(kLibraryVersion)},
                   {"unishard.source.format", source.format()},
                   {"unishard.source.step", std::to_string(catalog.step)}};
  if (const auto digest = identity(catalog)) {
    plan.metadata.emplace_back("unishard.source.identity", *digest);
  }
  return plan;
}

}  // namespace unishard::tools
