#include "formats/dcp/attribution.hpp"

#include "unishard/converters/adapter_names.hpp"
#include "unishard/format/text.hpp"

#include "formats/dcp/keys.hpp"
#include "formats/dcp/model_parts.hpp"
#include "formats/dcp/optimizer_models.hpp"
#include "formats/dcp/own_layout.hpp"
#include "formats/dcp/raw_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <unordered_set>
#include <utility>

namespace unishard::converters::dcp {
namespace {

/// Keys of Lightning's WeightAveraging, which saves the average of the weights as "state_dict".
constexpr std::string_view kTrained = "current_model_state.", kAverage = "state_dict.",
                           kAveraging = "averaging_state.";

using Names = std::unordered_map<std::string, std::string>;

/// What an optimizer knows by numbers, and what by names.
struct Claims {
  bool is_numbered = false;
  std::vector<std::string> names, numbers;
  std::unordered_set<std::string> listed;  ///< names in groups; without a state they are only here
  std::vector<Shape> number_shapes;
  std::size_t count = 0;  ///< of its parameters, as its groups list them
};

/// A number is a name where the groups list it as text.
Claims claims_of(const OptimizerClaims& optimizer) {
  Claims claims;
  std::size_t numbers = 0;
  for (const Json& group : optimizer.groups) {
    for (const Json& parameter : group["params"]) {
      if (parameter.is_string()) claims.listed.insert(parameter.get<std::string>());
      numbers += parameter.is_number_integer() ? 1u : 0u;
    }
  }
  claims.count = std::max(numbers + claims.listed.size(), optimizer.parameters.size());
  for (const auto& [name, shape] : optimizer.parameters) {
    if (!is_number(name) || claims.listed.contains(name)) {
      claims.names.push_back(name);
      continue;
    }
    claims.numbers.push_back(name);
    if (shape) claims.number_shapes.push_back(*shape);
  }
  claims.is_numbered = !claims.numbers.empty() || numbers > 0;
  return claims;
}

/// What the names below one prefix are: in the order of the file, second names too.
using Model = std::vector<NamedShape>;

class Attributor {
 public:
  Attributor(const StateDict& state, const std::vector<std::size_t>& tensors,
             const std::vector<OptimizerClaims>& optimizers)
      : state_(state), tensors_(tensors), optimizers_(optimizers) {
    for (const OptimizerClaims& optimizer : optimizers_) {
      claims_.push_back(claims_of(optimizer));
      for (const std::string& name : claims_.back().names)
        claimed_.insert(name.substr(0, name.find('.')));
      add_trained_statistics(claims_.back().names);
      add_trained_statistics(claims_.back().listed);
      add_trained_statistics(listed_names(optimizer.groups));
    }
    const auto has = [&](std::string_view start) {
      return std::ranges::any_of(tensors_,
                                 [&](std::size_t i) { return entry(i).key.starts_with(start); });
    };
    is_averaged_ = has(kTrained) && has(kAverage) && has(kAveraging);
  }

  Attribution run() {
    if (!use_own_models()) use_one_model();
    if (is_averaged_)
      out_.remarks.emplace_back(
          "state_dict has the average of the weights, which Lightning evaluates: it is kept as a "
          "value, and the model is current_model_state, which was trained");
    return std::move(out_);
  }

 private:
  const TensorEntry& entry(std::size_t index) const { return state_.tensors[index]; }

  // One model for all optimizers.

  void use_one_model() {
    take_model(one_model_prefix(out_.remarks));
    const Model model = trainable(out_.model);
    out_.trains_statistics = trains_statistics(out_.model);
    for (std::size_t o = 0; o < optimizers_.size(); ++o) {
      out_.names.push_back(names_in(o, model, all_trained(), out_.remarks_on_states));
      place_in_part(o, model, out_.names.back(), out_.remarks_on_states);
    }
    if (optimizers_.size() > 1) find_undecided(model);
    take_aliases({one_prefix_}, false);
  }

  std::string one_model_prefix(std::vector<std::string>& remarks) const {
    if (is_averaged_) return std::string(kTrained);
    std::vector<std::string> names;
    std::vector<Shape> shapes;
    for (const Claims& claims : claims_) {
      names.insert(names.end(), claims.names.begin(), claims.names.end());
      names.insert(names.end(), claims.listed.begin(), claims.listed.end());
      shapes.insert(shapes.end(), claims.number_shapes.begin(), claims.number_shapes.end());
    }
    return model_prefix(entries(), names, shapes, least_parameters(), remarks);
  }

  std::vector<const TensorEntry*> entries() const {
    std::vector<const TensorEntry*> tensors;
    tensors.reserve(tensors_.size());
    for (const std::size_t i : tensors_) tensors.push_back(&entry(i));
    return tensors;
  }

  /// Returns the number of parameters of the largest optimizer.
  std::size_t least_parameters() const {
    std::size_t least = 0;
    for (const Claims& claims : claims_) least = std::max(least, claims.count);
    return least;
  }

  /// Returns whether a key is at the level of the model's names. Without a prefix that is the top
  /// level where a model may be there, else below any other key.
  std::function<bool(const TensorEntry&)> is_at_model_level(const std::string& prefix) const {
    if (!prefix.empty()) return [](const TensorEntry&) { return true; };
    const auto is_top = [](const TensorEntry& tensor) { return tensor.path.size() <= 1; };
    const bool has_top =
        std::ranges::any_of(tensors_, [&](std::size_t i) { return is_top(entry(i)); });
    const std::set<std::string> possible = possible_models(entries(), least_parameters());
    if (!has_top) return [](const TensorEntry&) { return true; };
    if (possible.empty() || possible.contains("")) return is_top;
    return [is_top](const TensorEntry& tensor) { return !is_top(tensor); };
  }

  void take_model(const std::string& prefix) {
    one_prefix_ = prefix;
    out_.model_prefixes = {prefix};
    const auto is_at_level = is_at_model_level(prefix);
    std::vector<std::pair<std::size_t, std::string>> names;
    for (const std::size_t i : tensors_) {
      auto name = model_name(entry(i), prefix);
      const bool is_other = prefix.empty() && is_beside_models(entry(i).key, entry(i).path) &&
                            !is_claimed(entry(i).key);
      if (!name || is_other || !is_at_level(entry(i))) {
        out_.extras.push_back(i);
      } else {
        names.emplace_back(i, *std::move(name));
      }
    }
    find_replica(names);
    take_module_names(names);
    std::unordered_set<std::string> used;
    for (auto& [i, name] : names) {
      if (std::string plain = unwrapped(name); !used.contains(plain)) name = std::move(plain);
      used.insert(name);
      out_.model.push_back({i, std::move(name)});
    }
  }

  /// Whether an optimizer knows parameters below the first part of the key: a module may be called
  /// "optimizer".
  bool is_claimed(const std::string& key) const {
    return claimed_.contains(key.substr(0, key.find('.')));
  }

  void find_replica(const std::vector<std::pair<std::size_t, std::string>>& names) {
    std::vector<std::string> plain;
    plain.reserve(names.size());
    for (const auto& [i, name] : names) plain.push_back(without_wrappers(name));
    is_replica_ = state_.module_part == ModulePart::Replica && have_replica_part(plain);
  }

  /// accelerate saves an adapter of PEFT under the names of the adapter's file, and its optimizer
  /// under those of the modules: the model gets these.
  void take_module_names(std::vector<std::pair<std::size_t, std::string>>& names) {
    Names modules;
    const auto add = [&](const std::string& claimed) {
      std::string name = unwrapped(claimed);
      if (auto file = adapter_file_name(name)) modules.emplace(*std::move(file), std::move(name));
    };
    for (const Claims& claims : claims_) {
      std::ranges::for_each(claims.names, add);
      std::ranges::for_each(claims.listed, add);
    }
    if (modules.empty()) return;
    std::unordered_set<std::string> own;
    for (const auto& [i, name] : names) own.insert(unwrapped(name));
    for (auto& [i, name] : names) {
      const auto found = modules.find(unwrapped(name));
      if (found == modules.end() || own.contains(found->second)) continue;
      name = found->second;
      out_.has_adapter_names = true;
    }
  }

  std::string unwrapped(std::string name) const {
    name = without_wrappers(std::move(name));
    return is_replica_ ? std::string(without_replica(name)) : name;
  }

  template <class AnyNames>
  void add_trained_statistics(const AnyNames& names) {
    for (const std::string& name : names) {
      if (is_statistic(name)) trained_statistics_.push_back(without_wrappers(name));
    }
  }

  /// Whether an optimizer names what would else be a statistic. Its names may begin inside of the
  /// model.
  bool is_trained_statistic(std::string_view fqn) const {
    return std::ranges::any_of(trained_statistics_, [&](const std::string& name) {
      return fqn == name || (fqn.ends_with(name) && fqn[fqn.size() - name.size() - 1] == '.');
    });
  }

  /// Whether the optimizers train as many parameters as the model has tensors, statistics among
  /// them, and no layer counts batches.
  bool trains_statistics(const std::vector<Attribution::Parameter>& parameters) const {
    std::size_t tensors = 0;
    for (const auto& parameter : parameters) {
      const bool may_be = may_be_trained(entry(parameter.entry).dtype);
      if (!may_be && is_statistic(parameter.fqn)) return false;
      tensors += may_be ? 1u : 0u;
    }
    return tensors == all_trained() && !state_.are_parameters_distributed;
  }

  Model trainable(const std::vector<Attribution::Parameter>& parameters) const {
    const bool are_all_trained = trains_statistics(parameters);
    Model model;
    for (const auto& parameter : parameters) {
      const TensorEntry& tensor = entry(parameter.entry);
      if (may_be_trained(tensor.dtype) && (are_all_trained || is_trained_statistic(parameter.fqn) ||
                                           !is_buffer(state_, tensor, parameter.fqn)))
        model.push_back({parameter.fqn, tensor.shape});
    }
    return model;
  }

  /// Returns the fqns of what an optimizer numbers, if they are known. `trained` is the number of
  /// parameters that all optimizers of the model train.
  std::optional<std::vector<std::string>> fit(const NumberedParameters& parameters,
                                              const std::vector<Json>& groups, const Model& model,
                                              std::size_t trained) const {
    const std::vector<std::string> listed = listed_names(groups);
    if (!listed.empty()) return fit_listed(with_first_names(listed), parameters, model);
    if (state_.number_names.fit) return state_.number_names.fit(parameters, model);
    return state_.assumes_model_order ? fit_by_shape(parameters, model)
                                      : fit_different_shapes(parameters, model, trained);
  }

  /// An optimizer lists a tied parameter by any of its names, and the model has the first.
  std::vector<std::string> with_first_names(std::vector<std::string> names) const {
    Names first;
    for (const SecondKey& second : state_.second_keys) {
      if (second.key.starts_with(one_prefix_) && second.of.starts_with(one_prefix_))
        first.emplace(unwrapped(second.key.substr(one_prefix_.size())),
                      unwrapped(second.of.substr(one_prefix_.size())));
    }
    for (std::string& name : names) {
      if (const auto found = first.find(unwrapped(name)); found != first.end())
        name = found->second;
    }
    return names;
  }

  NumberedParameters numbered(std::size_t optimizer) const {
    std::unordered_map<std::string, Shape> shapes;
    for (const auto& [name, shape] : optimizers_[optimizer].parameters) {
      if (shape) shapes.emplace(name, *shape);
    }
    return numbered_parameters(optimizers_[optimizer].groups, shapes);
  }

  /// Returns the number of parameters of all optimizers together.
  std::size_t all_trained() const {
    std::size_t all = 0;
    for (const Claims& claims : claims_) all += claims.count;
    return all;
  }

  /// Names what has numbers "state.0", "state.1", ... when no names or several fit.
  Names names_in(std::size_t optimizer, const Model& model, std::size_t trained,
                 std::vector<std::string>& remarks) const {
    const Claims& claims = claims_[optimizer];
    Names names;
    for (const std::string& name : claims.names) names.emplace(name, plain_name(unwrapped(name)));
    if (!claims.is_numbered) return names;
    const std::vector<Json>& groups = optimizers_[optimizer].groups;
    const NumberedParameters parameters = numbered(optimizer);
    const auto fitting = fit(parameters, groups, model, trained);
    const std::string prefix = optimizers_.size() == 1 ? "" : optimizers_[optimizer].prefix;
    for (std::size_t i = 0; i < parameters.numbers.size(); ++i) {
      names[parameters.numbers[i]] =
          fitting ? (*fitting)[i] : fmt::format("{}state.{}", prefix, parameters.numbers[i]);
    }
    for (const std::string& number : claims.numbers)  // that no group lists
      names.try_emplace(number, fmt::format("{}state.{}", prefix, number));
    if (!fitting) {
      remark_on_undecided(optimizer, parameters, model, remarks);
    } else if (listed_names(groups).empty()) {
      remark_on_numbers(optimizer, parameters.numbers.size(), remarks);
    }
    return names;
  }

  /// Puts the name of the part before the names of an optimizer over a part of the model.
  void place_in_part(std::size_t optimizer, const Model& model, Names& names,
                     std::vector<std::string>& remarks) const {
    ClaimedShapes shapes;
    for (const std::string& name : claims_[optimizer].names)
      shapes.emplace(names.at(name), optimizers_[optimizer].parameters.at(name));
    for (const std::string& name : claims_[optimizer].listed)
      shapes.try_emplace(plain_name(unwrapped(name)));
    const std::string& key = optimizers_[optimizer].prefix;
    const ModelPart part = find_part(shapes, model, key);
    const auto place = [&](const std::string& name) {
      const auto full = part.names.find(plain_name(unwrapped(name)));
      if (full != part.names.end()) names[name] = full->second;
    };
    for (const std::string& name : claims_[optimizer].names) place(name);
    for (const std::string& name : claims_[optimizer].listed) place(name);
    if (part.undecided.empty()) return;
    remarks.push_back(
        fmt::format("{} has names that fit several parts of the model, {}: its states keep them",
                    key.empty() ? "the optimizer" : key.substr(0, key.size() - 1),
                    first_names(part.undecided)));
  }

  std::string whose(std::size_t optimizer) const {
    const std::string& key = optimizers_[optimizer].prefix;
    return optimizers_.size() == 1 ? "the optimizer" : key.substr(0, key.size() - 1);
  }

  void remark_on_undecided(std::size_t optimizer, const NumberedParameters& parameters,
                           const Model& model, std::vector<std::string>& remarks) const {
    if (parameters.numbers.empty()) return;  // its groups list none
    const auto order_hint = [&] {
      return model.empty() || !fit_by_shape(parameters, model)
                 ? "their shapes fit none or several choices of the model's tensors in its order, "
                   "so "
                   "--assume-model-order cannot name them: save with names (param_names)"
                 : "if the optimizer was given the parameters in the model's order, "
                   "--assume-model-order names them";
    };
    remarks.push_back(fmt::format(
        "{}'s {} parameters have numbers, and nothing tells for certain of which "
        "parameters they are: called state.0, state.1, ...; {}",
        whose(optimizer), parameters.numbers.size(),
        state_.number_names.fit ? state_.number_names.undecided(parameters, model) : order_hint()));
  }

  void remark_on_numbers(std::size_t optimizer, std::size_t count,
                         std::vector<std::string>& remarks) const {
    if (count == 0) return;  // its groups list none
    const std::string how =
        state_.assumes_model_order ? "in the order of the model, as --assume-model-order says"
        : state_.number_names.fit  ? state_.number_names.decided
                                   : "by their shapes, each of which one tensor of the model has";
    remarks.push_back(
        fmt::format("{}'s {} parameters have numbers: named {}", whose(optimizer), count, how));
  }

  /// An optimizer whose parameters another one before it has is undecided, and so is that one when
  /// its parameters could be those of several models. So is one with numbers that fit no names.
  void find_undecided(const Model& model) {
    std::unordered_map<std::string_view, std::size_t> owner;
    std::set<std::size_t> undecided;
    for (std::size_t o = 0; o < out_.names.size(); ++o) {
      if (claims_[o].is_numbered && !model.empty() && !are_known(out_.names[o], model))
        undecided.insert(o);
      for (const auto& [name, fqn] : out_.names[o]) {
        const auto [first, is_new] = owner.emplace(fqn, o);
        if (is_new || first->second == o) continue;
        undecided.insert(o);
        if (first->second < options_.size() && options_[first->second].size() > 1)
          undecided.insert(first->second);
      }
    }
    out_.undecided.assign(undecided.begin(), undecided.end());
  }

  static bool are_known(const Names& names, const Model& model) {
    std::unordered_set<std::string_view> known;
    for (const NamedShape& parameter : model) known.insert(parameter.name);
    return std::ranges::all_of(names,
                               [&](const auto& name) { return known.contains(name.second); });
  }

  // A model for each optimizer.

  /// Returns false, and changes nothing, unless there are several optimizers, which do not share a
  /// model, and the model of each is known.
  bool use_own_models() {
    if (optimizers_.size() < 2 || share_a_model()) return false;
    find_models();
    std::vector<std::string> prefixes;
    for (std::size_t o = 0; o < optimizers_.size(); ++o) {
      prefixes.push_back(optimizers_[o].prefix);
      options_.push_back(options_of(o));
    }
    const auto owners = match_models(prefixes, options_);
    if (!owners) return false;
    const std::set<std::string> own(owners->begin(), owners->end());
    if (own.size() == 1) return false;
    out_.model_prefixes.assign(own.begin(), own.end());
    for (std::size_t o = 0; o < owners->size(); ++o)
      out_.names.push_back(*full_names(o, (*owners)[o], out_.remarks_on_states));
    for (const std::size_t i : tensors_) {
      if (own.contains(prefix_of(entry(i).path))) {
        out_.model.push_back({i, without_wrappers(entry(i).key)});
      } else {
        out_.extras.push_back(i);
      }
    }
    take_aliases({own.begin(), own.end()}, true);
    return true;
  }

  /// Returns whether one model has the parameters of all optimizers, each of which has others.
  bool share_a_model() {
    std::vector<std::string> ignored;
    take_model(one_model_prefix(ignored));
    const Model model = trainable(out_.model);
    std::unordered_set<std::string> all, used;
    for (const auto& parameter : out_.model) all.insert(parameter.fqn);
    bool is_shared = true;
    for (std::size_t o = 0; is_shared && o < optimizers_.size(); ++o) {
      is_shared =
          std::ranges::all_of(names_in(o, model, all_trained(), ignored), [&](const auto& name) {
            return all.contains(name.second) && used.insert(name.second).second;
          });
    }
    out_ = {};
    return is_shared;
  }

  /// Returns the key of the state dict that holds a tensor, with a dot; "" for the top level.
  static std::string prefix_of(KeyPath path) {
    if (path.size() < 2) return {};
    path.pop_back();
    return joined(path) + ".";
  }

  void find_models() {
    const auto add = [&](const KeyPath& path, const Shape& shape) {
      const std::string prefix = prefix_of(path);
      if (is_averaged_ && prefix == kAverage) return;
      const std::string& name = path.back().text;
      if (!prefix.empty() && (is_trained_statistic(name) || !is_statistic(name)))
        models_[prefix].push_back({without_wrappers(path.back().text), shape});
    };
    for (const std::size_t i : tensors_) add(entry(i).path, entry(i).shape);
    std::unordered_map<std::string_view, const Shape*> shapes;
    for (const std::size_t i : tensors_) shapes.emplace(entry(i).key, &entry(i).shape);
    for (const SecondKey& second : state_.second_keys) {
      if (const auto of = shapes.find(second.of); of != shapes.end()) add(second.path, *of->second);
    }
  }

  /// Returns the fqns of an optimizer's parameters if the model with this prefix has them.
  std::optional<Names> full_names(std::size_t optimizer, const std::string& prefix,
                                  std::vector<std::string>& remarks) const {
    const Model& model = models_.at(prefix);
    Names names = names_in(optimizer, model, claims_[optimizer].count, remarks);
    if (!are_known(names, model)) return std::nullopt;
    for (auto& [name, fqn] : names) fqn = without_wrappers(fmt::format("{}{}", prefix, fqn));
    return names;
  }

  /// Returns the models that have all parameters of an optimizer: those with the best names.
  std::vector<ModelOption> options_of(std::size_t optimizer) const {
    std::vector<std::string> ignored, prefixes;
    std::vector<ModelOption> options;
    for (const auto& [prefix, model] : models_) {
      const auto names = full_names(optimizer, prefix, ignored);
      if (!names || names->empty()) continue;
      prefixes.push_back(prefix);
      options.push_back({prefix, {}});
      for (const auto& [name, fqn] : *names) options.back().parameters.insert(fqn);
    }
    const std::vector<std::string> best = best_models(prefixes);
    std::erase_if(options, [&](const ModelOption& option) {
      return std::ranges::count(best, option.model) == 0;
    });
    return options;
  }

  /// The second keys of a model's tensors are aliases.
  void take_aliases(const std::vector<std::string>& prefixes, bool with_prefix) {
    std::unordered_map<std::string_view, const std::string*> fqns;
    for (const auto& parameter : out_.model)
      fqns.emplace(entry(parameter.entry).key, &parameter.fqn);
    Names canonical;
    for (const SecondKey& second : state_.second_keys) {
      const auto first = fqns.find(second.of);
      const auto below = std::ranges::find_if(prefixes, [&](const std::string& prefix) {
        return second.key.starts_with(prefix) && second.key.size() > prefix.size();
      });
      if (first == fqns.end() || below == prefixes.end()) {
        out_.other_second_keys.push_back(&second);
        continue;
      }
      std::string name = unwrapped(second.key.substr(with_prefix ? 0 : below->size()));
      canonical.emplace(name, *first->second);
      out_.aliases.push_back({std::move(name), *first->second});
    }
    for (Names& names : out_.names) {
      for (auto& [name, fqn] : names) {
        if (const auto first = canonical.find(fqn); first != canonical.end()) fqn = first->second;
      }
    }
  }

  const StateDict& state_;
  const std::vector<std::size_t>& tensors_;
  const std::vector<OptimizerClaims>& optimizers_;
  std::vector<Claims> claims_;
  std::unordered_set<std::string> claimed_;      // first parts of the names in all of them
  std::vector<std::string> trained_statistics_;  // names of parameters, in all of them
  std::string one_prefix_;
  bool is_averaged_ = false;             ///< the state dict of the usual name has averages
  bool is_replica_ = false;              ///< the names of the one model are a replica's
  std::map<std::string, Model> models_;  // by prefix
  std::vector<std::vector<ModelOption>> options_;  // of each optimizer
  Attribution out_;
};

}  // namespace

std::string Attribution::fqn_of(std::size_t optimizer, const std::string& name) const {
  const auto found = names[optimizer].find(name);
  return found == names[optimizer].end() ? plain_name(without_wrappers(name)) : found->second;
}

Attribution attribute(const StateDict& state, const std::vector<std::size_t>& tensors,
                      const std::vector<OptimizerClaims>& optimizers) {
  return Attributor(state, tensors, optimizers).run();
}

}  // namespace unishard::converters::dcp
