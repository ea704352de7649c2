#include "formats/dcp/keys.hpp"

#include "core/nested_states.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

namespace unishard::converters::dcp {
namespace {

constexpr std::string_view kState = "state", kGroups = "param_groups";

/// Returns the position of part `wanted` among the parts of `key` that dots separate.
std::optional<std::size_t> find_part(std::string_view key, std::string_view wanted) {
  for (std::size_t at = 0;;) {
    const std::size_t end = std::min(key.find('.', at), key.size());
    if (key.substr(at, end - at) == wanted) return at;
    if (end == key.size()) return std::nullopt;
    at = end + 1;
  }
}

/// Returns true for "optim", "optimizers_0", "optimizerG", and false for "optimal".
bool begins_with_optimizer(std::string_view text) {
  constexpr std::array<std::string_view, 4> kWords = {"optimizers", "optimizer", "optims", "optim"};
  const auto* const word =
      std::ranges::find_if(kWords, [&](std::string_view each) { return text.starts_with(each); });
  if (word == kWords.end()) return false;
  const std::string_view rest = text.substr(word->size());
  return rest.empty() || rest[0] < 'a' || rest[0] > 'z';
}

bool names_an_optimizer(std::string_view prefix) {
  for (std::size_t at = 0; at < prefix.size(); at = prefix.find('.', at) + 1) {
    if (begins_with_optimizer(prefix.substr(at))) return true;
  }
  return false;
}

std::uint64_t to_number(std::string_view text) { return std::stoull(std::string(text)); }

}  // namespace

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 19 &&
         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

std::optional<NumberGap> find_gap(const std::set<std::uint64_t>& numbers, std::uint64_t first) {
  std::uint64_t next = first;
  for (auto at = numbers.lower_bound(first); at != numbers.end(); ++at, ++next) {
    if (*at != next) return NumberGap{next, *at};
  }
  return std::nullopt;
}

bool is_numbered(std::string_view fqn) {
  const std::size_t dot = fqn.rfind('.');
  return dot != fqn.npos && is_number(fqn.substr(dot + 1)) && fqn.substr(0, dot).ends_with("state");
}

std::vector<std::string> optimizer_prefixes(const StateDict& state) {
  std::set<std::string> found;
  const auto look = [&](const std::string& key) {
    if (const auto at = find_part(key, kGroups)) found.insert(key.substr(0, *at));
    const auto at = find_part(key, kState);
    if (at && names_an_optimizer(std::string_view(key).substr(0, *at)))
      found.insert(key.substr(0, *at));
  };
  for (const TensorEntry& tensor : state.tensors) look(tensor.key);
  for (const ObjectEntry& object : state.objects) {
    look(object.key);
    // The key is a whole optimizer in one object.
    if (object.value.is_object() && object.value.contains(kGroups))
      found.insert(object.key.empty() ? "" : object.key + ".");
  }
  return {found.begin(), found.end()};
}

namespace {

/// In the nested form the name is one part of the path and may contain dots. The parts behind it
/// are the state, and the members of a state that is a dict. Returns the name and the state.
std::optional<std::pair<std::string, std::string>> nested_state(std::string_view rest,
                                                                const KeyPath& path) {
  for (std::size_t at = 0; at + 2 < path.size(); ++at) {
    if (path[at].text != kState) continue;
    std::string joined = path[at + 1].text, state;
    for (std::size_t i = at + 2; i < path.size(); ++i) {
      joined += "." + path[i].text;
      state = state.empty() ? path[i].text : member_state(state, path[i].text);
    }
    if (joined == rest && is_state_name(state)) return std::pair(path[at + 1].text, state);
  }
  return std::nullopt;
}

}  // namespace

std::optional<OptimizerKey> parse_state_key(const std::string& key, const KeyPath& path,
                                            const std::vector<std::string>& prefixes) {
  for (std::size_t i = 0; i < prefixes.size(); ++i) {
    const std::string start = prefixes[i] + std::string(kState) + ".";
    if (!key.starts_with(start)) continue;
    const std::string rest = key.substr(start.size());
    if (auto nested = nested_state(rest, path))
      return OptimizerKey{i, nested->first, nested->second};
    const std::size_t dot = rest.rfind('.');
    if (dot == std::string::npos || !is_state_name(std::string_view(rest).substr(dot + 1)))
      return std::nullopt;
    return OptimizerKey{i, rest.substr(0, dot), rest.substr(dot + 1)};
  }
  return std::nullopt;
}

std::optional<GroupKey> parse_group_key(const std::string& key, const KeyPath& path,
                                        const std::vector<std::string>& prefixes) {
  for (std::size_t i = 0; i < prefixes.size(); ++i) {
    const std::string start = prefixes[i] + std::string(kGroups);
    if (key == start) return GroupKey{i, std::nullopt, {}, {}};
    if (!key.starts_with(start + ".")) continue;
    const std::string rest = key.substr(start.size() + 1);
    const std::size_t dot = rest.rfind('.');
    if (dot == std::string::npos) return std::nullopt;
    const std::string owner = rest.substr(0, dot), setting = rest.substr(dot + 1);
    // "param_groups.0.lr" means group 0, unless "0" is the name of a parameter, that is, unless the
    // whole text is one part of the path.
    const bool is_flat = !path.empty() && std::ranges::none_of(path, &PathPart::is_position);
    if (is_number(owner) && !is_flat) return GroupKey{i, to_number(owner), {}, setting};
    // A part of a setting, such as one of two betas, is none itself.
    if (std::ranges::any_of(path, &PathPart::is_position)) return std::nullopt;
    return GroupKey{i, std::nullopt, owner, setting};
  }
  return std::nullopt;
}

bool names_a_copy(std::string_view name) {
  constexpr std::array<std::string_view, 20> kCopies = {
      "ema",    "ewa",    "swa",       "avg",     "average", "averaged", "averager",
      "polyak", "shadow", "target",    "teacher", "best",    "init",     "initial",
      "old",    "prev",   "reference", "backup",  "ref",     "original"};
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find_first_of("._-", at), name.size());
    if (std::ranges::count(kCopies, name.substr(at, end - at)) > 0) return true;
    at = end + 1;
  }
  return false;
}

namespace {

/// Returns how far a prefix is from the best name of a model.
std::size_t rank_of(const std::string& prefix) {
  std::string name = without_wrappers(prefix);
  if (!name.empty()) name.pop_back();
  const std::string last = name.substr(name.rfind('.') + 1);
  const auto usual = std::ranges::find(kUsualNames, last) - kUsualNames.begin();
  return static_cast<std::size_t>(usual) + (names_a_copy(name) ? kUsualNames.size() + 1 : 0);
}

/// Returns the prefix among several that have the parameters' names, in the order of the file.
std::string choose_model(const std::vector<std::string>& prefixes,
                         std::vector<std::string>& remarks) {
  const std::vector<std::string> best = best_models(prefixes);
  if (best.size() > 1 && rank_of(best.front()) >= kUsualNames.size()) {
    remarks.push_back(
        fmt::format("{} and {} have the names of the optimizer's parameters: {} is taken for the "
                    "model",
                    best[0], best[1], best[0]));
  }
  return best.front();
}

bool is_usual(std::string_view part) { return std::ranges::count(kUsualNames, part) > 0; }

/// Returns what precedes the names of the whole model when the optimizer's names begin behind
/// `prefix`: an optimizer over a part of the model, "model.encoder.", leaves the rest out. Where
/// the files record the dicts, that is the one that holds the tensor: the top level too.
std::string root_of(const std::string& prefix, const TensorEntry& tensor) {
  if (tensor.path.empty()) {
    const std::string first = prefix.substr(0, prefix.find('.'));
    return is_usual(first) ? first + "." : prefix;
  }
  const std::string& name = tensor.path.back().text;
  if (!tensor.key.ends_with(name)) return prefix;
  return prefix.substr(0, tensor.key.size() - name.size());
}

/// How many of the optimizer's parameters are found below a root of a model, behind one prefix.
struct Root {
  std::string prefix;
  std::size_t hits = 0;
};

/// Returns the roots below which the optimizer's parameters are found, in the order of the file.
std::vector<Root> find_roots(const std::vector<const TensorEntry*>& tensors,
                             const std::vector<std::string>& fqns) {
  std::unordered_set<std::string> wanted;
  for (const std::string& fqn : fqns) wanted.insert(without_wrappers(fqn));
  std::map<std::string, std::pair<std::size_t, std::size_t>> hits;  // the root and the count
  std::unordered_map<std::string, std::size_t> numbers;             // of roots
  std::vector<Root> roots;
  const auto count = [&](const std::string& prefix, const TensorEntry& tensor) {
    const auto [found, is_new] = hits.try_emplace(prefix, 0, 0);
    auto& [root, found_below] = found->second;
    if (is_new) {
      const auto [known, is_new_root] = numbers.try_emplace(root_of(prefix, tensor), roots.size());
      if (is_new_root) roots.push_back({known->first, 0});
      root = known->second;
    }
    roots[root].hits = std::max(roots[root].hits, ++found_below);
  };
  for (const TensorEntry* tensor : tensors) {
    const std::string& key = tensor->key;
    for (std::size_t at = 0; at < key.size();) {
      const std::string prefix = key.substr(0, at);
      if (!ends_with_wrapper(prefix) && wanted.contains(without_wrappers(key.substr(at))))
        count(prefix, *tensor);
      const std::size_t dot = key.find('.', at);
      if (dot == std::string::npos) break;
      at = dot + 1;
    }
  }
  return roots;
}

/// Says that a copy is taken for the model although something has a model's usual name.
void remark_on_copy(const std::string& chosen, const std::vector<const TensorEntry*>& tensors,
                    std::vector<std::string>& remarks) {
  if (!names_a_copy(chosen)) return;
  for (const TensorEntry* tensor : tensors) {
    const std::string first = tensor->key.substr(0, tensor->key.find('.'));
    if (!is_usual(first) || chosen.starts_with(first + ".")) continue;
    remarks.push_back(
        fmt::format("{} has more of the optimizer's parameters than {}. and is taken for the model",
                    chosen, first));
    return;
  }
}

/// Returns the root of the model below which the optimizer's parameters are found; nullopt without
/// any. A usual name counts first, also where a copy has a few parameters more.
std::optional<std::string> prefix_by_parameters(const std::vector<const TensorEntry*>& tensors,
                                                const std::vector<std::string>& fqns,
                                                std::vector<std::string>& remarks) {
  std::vector<Root> roots = find_roots(tensors, fqns);
  if (roots.empty()) return std::nullopt;
  const std::size_t most = std::ranges::max(roots, {}, &Root::hits).hits;
  std::erase_if(roots, [&](const Root& root) { return 2 * root.hits <= most; });
  const auto rank = [](const Root& root) { return rank_of(root.prefix); };
  const std::size_t best = rank(*std::ranges::min_element(roots, {}, rank));
  std::erase_if(roots, [&](const Root& root) { return rank(root) > best; });
  const std::size_t most_of_best = std::ranges::max(roots, {}, &Root::hits).hits;
  std::vector<std::string> prefixes;
  for (const Root& root : roots) {
    if (root.hits == most_of_best) prefixes.push_back(root.prefix);
  }
  std::string chosen = choose_model(prefixes, remarks);
  remark_on_copy(chosen, tensors, remarks);
  return chosen;
}

/// Returns the first part that all tensors have before their own names, if there is one.
std::optional<std::string> common_part(const std::vector<const TensorEntry*>& tensors) {
  for (const TensorEntry* tensor : tensors) {
    if (tensor->path.size() < 2 || tensor->path[0] != tensors[0]->path[0]) return std::nullopt;
  }
  if (tensors.empty() || tensors[0]->path[0].is_position) return std::nullopt;
  return tensors[0]->path[0].text + ".";
}

/// Returns the only first part, or "" for the top level, below which there is a tensor for each
/// shape.
std::optional<std::string> prefix_by_shapes(const std::vector<const TensorEntry*>& tensors,
                                            std::vector<Shape> shapes) {
  if (shapes.empty()) return std::nullopt;
  std::map<std::string, std::vector<Shape>> below;
  for (const TensorEntry* tensor : tensors) {
    const bool is_nested = tensor->path.size() >= 2 && !tensor->path[0].is_position;
    below[is_nested ? tensor->path[0].text + "." : ""].push_back(tensor->shape);
  }
  std::ranges::sort(shapes);
  std::vector<std::string> fitting;
  for (auto& [prefix, found] : below) {
    std::ranges::sort(found);
    if (std::ranges::includes(found, shapes)) fitting.push_back(prefix);
  }
  if (fitting.size() > 1) std::erase_if(fitting, names_a_copy);
  if (fitting.size() != 1) return std::nullopt;
  return fitting.front();
}

}  // namespace

std::vector<std::string> best_models(std::vector<std::string> prefixes) {
  if (prefixes.empty()) return prefixes;
  const std::size_t best = rank_of(*std::ranges::min_element(prefixes, {}, rank_of));
  std::erase_if(prefixes, [&](const std::string& prefix) { return rank_of(prefix) > best; });
  return prefixes;
}

std::set<std::string> possible_models(const std::vector<const TensorEntry*>& tensors,
                                      std::size_t least) {
  struct Found {
    std::size_t trained = 0;
    bool has_array = false;
  };
  std::map<std::string, Found> below;
  for (const TensorEntry* tensor : tensors) {
    if (is_beside_models(tensor->key, tensor->path)) continue;
    const bool is_nested = tensor->path.size() >= 2 && !tensor->path[0].is_position;
    if (is_nested && names_a_copy(tensor->path[0].text)) continue;
    Found& found = below[is_nested ? tensor->path[0].text + "." : ""];
    if (!may_be_trained(tensor->dtype)) continue;
    ++found.trained;
    found.has_array |= !tensor->shape.empty();
  }
  std::set<std::string> prefixes;
  for (const auto& [prefix, found] : below) {
    if (found.has_array && found.trained >= least) prefixes.insert(prefix);
  }
  return prefixes;
}

namespace {

/// Returns the prefix and the usual name of a model below it, {"state": {"model": ..., ...}}, if
/// there is one.
std::string with_usual_name(const std::string& prefix,
                            const std::vector<const TensorEntry*>& tensors) {
  for (const std::string_view usual : kUsualNames) {
    const bool is_there = std::ranges::any_of(tensors, [&](const TensorEntry* tensor) {
      const KeyPath& path = tensor->path;
      return path.size() > 2 && path[0].text + "." == prefix && path[1].text == usual &&
             !path[1].is_position;
    });
    if (is_there) return fmt::format("{}{}.", prefix, usual);
  }
  return prefix;
}

}  // namespace

std::string model_prefix(const std::vector<const TensorEntry*>& tensors,
                         const std::vector<std::string>& fqns, const std::vector<Shape>& shapes,
                         std::size_t least, std::vector<std::string>& remarks) {
  if (const auto known = prefix_by_parameters(tensors, fqns, remarks)) return *known;
  for (const std::string_view usual : kUsualNames) {
    std::string prefix = std::string(usual) + ".";
    const auto is_below = [&](const TensorEntry* tensor) {
      return tensor->key.starts_with(prefix) &&
             (tensor->path.empty() || (tensor->path.size() >= 2 && tensor->path[0].text == usual));
    };
    if (std::ranges::any_of(tensors, is_below)) return prefix;
  }
  if (const auto fitting = prefix_by_shapes(tensors, shapes))
    return with_usual_name(*fitting, tensors);
  const std::set<std::string> possible = possible_models(tensors, least);
  if (possible.size() == 1) return with_usual_name(*possible.begin(), tensors);
  return with_usual_name(common_part(tensors).value_or(""), tensors);
}

std::optional<std::string> model_name(const TensorEntry& tensor, std::string_view prefix) {
  if (!tensor.key.starts_with(prefix)) return std::nullopt;
  return plain_name(tensor.key.substr(prefix.size()));
}

bool may_be_trained(DType dtype) {
  const Kind kind = info(dtype).kind;
  return kind == Kind::Float || kind == Kind::Complex;
}

bool is_beside_models(std::string_view key, const KeyPath& path) {
  constexpr std::array<std::string_view, 7> kRoots = {
      "rng_state",   "lr_scheduler", "opt_param_scheduler", "scheduler",
      "train_state", "dataloader",   "rerun_state_machine"};
  const std::string_view root = key.substr(0, key.find_first_of("./"));
  if (path.size() == 1 && path[0].text == key && root.size() < key.size()) return false;
  if (root == "rng_state") return true;
  return root.size() < key.size() &&
         (begins_with_optimizer(root) || std::ranges::count(kRoots, root) > 0);
}

std::string plain_name(std::string name) { return name.empty() ? "tensor" : std::move(name); }

bool is_statistic(std::string_view fqn) {
  const std::string_view last = fqn.substr(fqn.rfind('.') + 1);
  return last == "running_mean" || last == "running_var" || last == "num_batches_tracked" ||
         last == "e_score_correction_bias";  // of a router
}

bool is_buffer(const StateDict& state, const TensorEntry& tensor, std::string_view fqn) {
  return is_statistic(fqn) || (state.are_parameters_distributed && !tensor.is_distributed);
}

}  // namespace unishard::converters::dcp
