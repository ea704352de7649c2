#include "workflows/tensor_pairs.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
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

bool selected(const TensorInfo& tensor, const std::vector<std::string>& states) {
  return states.empty() || std::find(states.begin(), states.end(), tensor.state) != states.end();
}

Pairing pair_by_name(const Catalog& a, const Catalog& b, const std::vector<std::string>& states) {
  Pairing out;
  const Index in_b = index_of(b);
  std::vector<bool> used(b.tensors.size());
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    if (!selected(a.tensors[i], states)) continue;
    const auto found = in_b.find(key(a.tensors[i].fqn, a.tensors[i].state));
    if (found == in_b.end()) {
      out.only_a.push_back(i);
    } else {
      out.pairs.push_back({i, found->second});
      used[found->second] = true;
    }
  }
  for (std::size_t i = 0; i < b.tensors.size(); ++i) {
    if (!used[i] && selected(b.tensors[i], states)) out.only_b.push_back(i);
  }
  return out;
}

/// Returns the tensor of `full` from which `flat` was made: the first model state of its type and
/// shape, else the first tensor.
std::optional<std::size_t> counterpart(const Catalog& full, const Index& index,
                                       const TensorInfo& flat,
                                       const std::vector<std::string>& states) {
  std::optional<std::size_t> first;
  for (const std::string_view model_state : kModelStates) {
    const auto found = index.find(key(flat.fqn, model_state));
    if (found == index.end()) continue;
    const TensorInfo& tensor = full.tensors[found->second];
    if (!selected(tensor, states)) continue;
    if (tensor.dtype == flat.dtype && tensor.shape == flat.shape) return found->second;
    if (!first) first = found->second;
  }
  return first;
}

/// Pairs `full`, which has states, with `flat`, which has one tensor per name. Pairs are (full,
/// flat).
Pairing pair_with_flat(const Catalog& full, const Catalog& flat,
                       const std::vector<std::string>& states) {
  Pairing out;
  const Index index = index_of(full);
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < flat.tensors.size(); ++i) {
    names.insert(flat.tensors[i].fqn);
    if (const auto found = counterpart(full, index, flat.tensors[i], states)) {
      out.pairs.push_back({*found, i});
    } else if (!counterpart(full, index, flat.tensors[i], {})) {
      out.only_b.push_back(i);
    }  // else it belongs to a state that was not asked for
  }
  std::set<std::string_view> left_out;
  for (std::size_t i = 0; i < full.tensors.size(); ++i) {
    const TensorInfo& tensor = full.tensors[i];
    if (!selected(tensor, states)) continue;
    const bool is_model = is_model_state(tensor.state);
    if (!is_model) left_out.insert(tensor.state);
    if (is_model && names.insert(tensor.fqn).second) out.only_a.push_back(i);
  }
  if (!left_out.empty()) {
    out.notes.push_back(fmt::format("states that one side's format does not hold were left out: {}",
                                    fmt::join(left_out, ", ")));
  }
  return out;
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

Pairing pair(const Source& a, const Source& b, const std::vector<std::string>& states) {
  if (has_states(a) == has_states(b)) return pair_by_name(a.catalog(), b.catalog(), states);
  if (has_states(a)) return pair_with_flat(a.catalog(), b.catalog(), states);
  Pairing out = pair_with_flat(b.catalog(), a.catalog(), states);
  for (TensorPair& each : out.pairs) std::swap(each.a, each.b);
  std::swap(out.only_a, out.only_b);
  return out;
}

}  // namespace

Pairing pair_tensors(const Source& a, const Source& b, const std::vector<std::string>& states) {
  require_states(a, b, states);
  Pairing out = pair(a, b, states);
  if (!states.empty() && out.pairs.empty() && out.only_a.empty() && out.only_b.empty())
    raise(ErrorCode::InvalidArgument,
          "there is nothing to compare in the states that were asked for",
          "one of the two is a model without them: name others, or leave out --states");
  return out;
}

}  // namespace unishard::tools
