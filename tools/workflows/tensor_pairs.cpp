#include "workflows/tensor_pairs.hpp"

#include "unishard/converters/extra_state.hpp"
#include "unishard/converters/replica_names.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <unordered_map>

namespace unishard::tools {
namespace {

using converters::Source;

constexpr std::array<std::string_view, 3> kModelStates = {state::kFp32, state::kWeights,
                                                          state::kBuffer};

bool is_model_state(std::string_view state) {
  return std::ranges::find(kModelStates, state) != kModelStates.end();
}

/// A model file declares every tensor a weight; a checkpoint has more precise states.
bool has_states(const Source& source) {
  constexpr std::array<std::string_view, 5> kModelFormats = {"safetensors", "torch", "hdf5", "npz",
                                                             "gguf"};
  if (std::ranges::count(kModelFormats, source.format()) == 0) return true;
  const auto is_weight = [](const TensorInfo& tensor) { return tensor.state == state::kWeights; };
  return !std::ranges::all_of(source.catalog().tensors, is_weight);
}

using Index = std::unordered_map<std::string, std::size_t>;

std::string key(std::string_view fqn, std::string_view state) {
  return fmt::format("{}\n{}", fqn, state);
}

Index index_of(const Catalog& catalog) {
  Index index;
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    index.emplace(key(catalog.tensors[i].fqn, catalog.tensors[i].state), i);
  }
  return index;
}

/// The second names of tied parameters, each with its target.
using SecondNames = std::unordered_map<std::string_view, std::string_view>;

SecondNames second_names(const Catalog& catalog) {
  SecondNames out;
  for (const Alias& alias : catalog.aliases) out.emplace(alias.fqn, alias.target);
  return out;
}

std::optional<std::size_t> find(const Index& index, std::string_view fqn, std::string_view state) {
  const auto found = index.find(key(fqn, state));
  return found == index.end() ? std::nullopt : std::optional(found->second);
}

/// Returns the tensor that `fqn` is tied to.
std::optional<std::size_t> find_tied(const Index& index, const SecondNames& tied,
                                     std::string_view fqn, std::string_view state) {
  const auto name = tied.find(fqn);
  return name == tied.end() ? std::nullopt : find(index, name->second, state);
}

bool selected(const TensorInfo& tensor, const std::vector<std::string>& states) {
  return states.empty() || std::find(states.begin(), states.end(), tensor.state) != states.end();
}

/// Pairs what each side has of a parameter under another model state: the fp32 state of one side
/// with the bfloat16 weights of the other.
void pair_model_states(const Catalog& a, const Catalog& b, Pairing& pairing) {
  std::unordered_map<std::string_view, std::size_t> left;
  for (const std::size_t index : pairing.only_b) {
    if (is_model_state(b.tensors[index].state)) left.emplace(b.tensors[index].fqn, index);
  }
  std::set<std::size_t> used;
  std::erase_if(pairing.only_a, [&](std::size_t index) {
    const TensorInfo& tensor = a.tensors[index];
    const auto found = is_model_state(tensor.state) ? left.find(tensor.fqn) : left.end();
    if (found == left.end()) return false;
    pairing.pairs.push_back({index, found->second});
    used.insert(found->second);
    left.erase(found);
    return true;
  });
  std::erase_if(pairing.only_b, [&](std::size_t index) { return used.contains(index); });
}

Pairing pair_by_name(const Catalog& a, const Catalog& b, const std::vector<std::string>& states) {
  Pairing out;
  const Index in_a = index_of(a), in_b = index_of(b);
  const SecondNames tied_in_a = second_names(a), tied_in_b = second_names(b);
  std::vector<bool> used(b.tensors.size());
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    const TensorInfo& tensor = a.tensors[i];
    if (!selected(tensor, states)) continue;
    auto found = find(in_b, tensor.fqn, tensor.state);
    if (!found) found = find_tied(in_b, tied_in_b, tensor.fqn, tensor.state);
    if (!found) {
      out.only_a.push_back(i);
    } else {
      out.pairs.push_back({i, *found});
      used[*found] = true;
    }
  }
  for (std::size_t i = 0; i < b.tensors.size(); ++i) {
    const TensorInfo& tensor = b.tensors[i];
    if (used[i] || !selected(tensor, states)) continue;
    if (const auto found = find_tied(in_a, tied_in_a, tensor.fqn, tensor.state)) {
      out.pairs.push_back({*found, i});
    } else {
      out.only_b.push_back(i);
    }
  }
  pair_model_states(a, b, out);
  return out;
}

/// Returns the tensor of `full` with the name `fqn` from which `flat` was made: the first model
/// state of its type and shape, else the first tensor.
std::optional<std::size_t> counterpart(const Catalog& full, const Index& index,
                                       std::string_view fqn, const TensorInfo& flat,
                                       const std::vector<std::string>& states) {
  std::optional<std::size_t> first;
  for (const std::string_view model_state : kModelStates) {
    const auto found = find(index, fqn, model_state);
    if (!found) continue;
    const TensorInfo& tensor = full.tensors[*found];
    if (!selected(tensor, states)) continue;
    if (tensor.dtype == flat.dtype && tensor.shape == flat.shape) return found;
    if (!first) first = found;
  }
  return first;
}

/// Pairs `full`, which has states, with `flat`, which has one tensor per name. Pairs are (full,
/// flat).
class FlatPairing {
 public:
  FlatPairing(const Catalog& full, const Catalog& flat, const std::vector<std::string>& states)
      : full_(full), flat_(flat), states_(states) {}

  Pairing run() {
    const Index in_flat = index_of(flat_);
    for (std::size_t i = 0; i < flat_.tensors.size(); ++i) pair(flat_.tensors[i].fqn, i);
    for (const Alias& alias : flat_.aliases) {  // perhaps a copy in `full`
      const auto target = find(in_flat, alias.target, state::kWeights);
      if (target && is_stored(alias.fqn)) pair(alias.fqn, *target);
    }
    leave_out_states();
    return std::move(out_);
  }

 private:
  bool is_stored(std::string_view fqn) const {
    return std::ranges::any_of(kModelStates, [&](std::string_view model_state) {
      return find(index_, fqn, model_state).has_value();
    });
  }

  void pair(std::string_view name, std::size_t flat) {
    const auto second = tied_.find(name);
    const std::string_view fqn = second != tied_.end() && !is_stored(name) ? second->second : name;
    names_.insert({name, fqn});
    if (const auto found = counterpart(full_, index_, fqn, flat_.tensors[flat], states_)) {
      out_.pairs.push_back({*found, flat});
    } else if (!is_stored(fqn)) {
      out_.only_b.push_back(flat);
    }  // else it belongs to a state that was not asked for
  }

  void leave_out_states() {
    std::set<std::string_view> left_out;
    for (std::size_t i = 0; i < full_.tensors.size(); ++i) {
      const TensorInfo& tensor = full_.tensors[i];
      if (!selected(tensor, states_)) continue;
      const bool is_model = is_model_state(tensor.state);
      if (!is_model) left_out.insert(tensor.state);
      if (is_model && names_.insert(tensor.fqn).second) out_.only_a.push_back(i);
    }
    if (left_out.empty()) return;
    out_.notes.push_back(
        fmt::format("states that one side's format does not hold were left out: {}",
                    fmt::join(left_out, ", ")));
  }

  const Catalog& full_;
  const Catalog& flat_;
  const std::vector<std::string>& states_;
  const Index index_ = index_of(full_);
  const SecondNames tied_ = second_names(full_);
  std::set<std::string_view> names_;
  Pairing out_;
};

/// Notes the tied parameters that have a tensor of their own on the other side.
void note_tied(const Catalog& a, const Catalog& b, Pairing& pairing) {
  constexpr std::size_t kNamed = 5;
  std::set<std::string> names;
  for (const TensorPair& pair : pairing.pairs) {
    const std::string& in_a = a.tensors[pair.a].fqn;
    const std::string& in_b = b.tensors[pair.b].fqn;
    if (in_a != in_b) names.insert(fmt::format("{} and {}", in_a, in_b));
  }
  if (names.empty()) return;
  const std::size_t more = names.size() - std::min(names.size(), kNamed);
  names.erase(std::prev(names.end(), static_cast<std::ptrdiff_t>(more)), names.end());
  pairing.notes.push_back(
      fmt::format("tied parameters were compared with tensors of their other names (A and B): {}{}",
                  fmt::join(names, ", "), more > 0 ? fmt::format(" and {} more", more) : ""));
}

/// A state that no side has would make two checkpoints equal. Those of a model are exempt: each
/// format has one of them.
void require_states(const Source& a, const Source& b, const std::vector<std::string>& states) {
  std::set<std::string> present;
  for (const Source* source : {&a, &b}) {
    for (const TensorInfo& tensor : source->catalog().tensors) present.insert(tensor.state);
  }
  const auto is_known = [&](const std::string& state) { return present.contains(state); };
  for (const std::string& state : states) {
    const bool may_lack = is_model_state(state) && std::ranges::any_of(states, is_known);
    if (is_known(state) || may_lack) continue;
    raise(ErrorCode::InvalidArgument,
          fmt::format("neither checkpoint has a state {}", quote(state)),
          fmt::format("the states are {}", fmt::join(present, ", ")));
  }
}

/// A catalog, and whether its format has states.
struct Side {
  const Catalog& catalog;
  bool has_states;
};

Pairing pair(const Side& a, const Side& b, const std::vector<std::string>& states) {
  if (a.has_states == b.has_states) return pair_by_name(a.catalog, b.catalog, states);
  if (a.has_states) return FlatPairing(a.catalog, b.catalog, states).run();
  Pairing out = FlatPairing(b.catalog, a.catalog, states).run();
  for (TensorPair& each : out.pairs) std::swap(each.a, each.b);
  std::swap(out.only_a, out.only_b);
  return out;
}

}  // namespace

Pairing pair_tensors(const Source& a, const Source& b, const std::vector<std::string>& states) {
  require_states(a, b, states);
  const auto plain_a = converters::without_replica(a.catalog(), b.catalog()),
             plain_b = converters::without_replica(b.catalog(), a.catalog());
  const Catalog &in_a = plain_a ? *plain_a : a.catalog(), &in_b = plain_b ? *plain_b : b.catalog();
  Pairing out = pair({in_a, has_states(a)}, {in_b, has_states(b)}, states);
  if (!states.empty() && out.pairs.empty() && out.only_a.empty() && out.only_b.empty())
    raise(ErrorCode::InvalidArgument,
          "there is nothing to compare in the states that were asked for",
          "one of the two is a model without them: name others, or leave out --states");
  note_tied(in_a, in_b, out);
  if (plain_a || plain_b)
    out.notes.push_back(
        fmt::format("the names of {} all begin with \"{}\", and were compared without it",
                    plain_a ? "A" : "B", converters::kReplica));
  return out;
}

}  // namespace unishard::tools
