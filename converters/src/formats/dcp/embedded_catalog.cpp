#include "formats/dcp/embedded_catalog.hpp"

#include "unishard/format/error.hpp"

#include "containers/inline_tensors.hpp"
#include "core/embedded_catalog.hpp"
#include "core/key_text.hpp"
#include "core/nested_states.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>

namespace unishard::converters::dcp {
namespace {

/// Sorts tensors by parameter; within one parameter: fp32, optimizer states, weights.
void sort_tensors(Arrangement& arrangement) {
  auto& tensors = arrangement.catalog.tensors;
  std::unordered_map<std::string, std::size_t> place;
  for (const TensorInfo& tensor : tensors) place.emplace(tensor.fqn, place.size());
  const auto rank = [](const TensorInfo& tensor) {
    if (tensor.state == state::kFp32) return 0;
    return tensor.state == state::kWeights ? 2 : 1;
  };
  std::vector<std::size_t> order(tensors.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](std::size_t i) {
    return std::pair(place.at(tensors[i].fqn), rank(tensors[i]));
  });
  std::vector<TensorInfo> sorted;
  std::vector<std::size_t> entries;
  for (const std::size_t i : order) {
    sorted.push_back(std::move(tensors[i]));
    entries.push_back(arrangement.entries[i]);
  }
  tensors = std::move(sorted);
  arrangement.entries = std::move(entries);
}

/// Adds the keys under which the sink writes what `value` holds and the catalog's tensors are not:
/// small tensors, and second names of tensors.
void find_added_keys(const Json& value, const std::string& key, std::set<std::string>& keys) {
  const auto below = [&](std::string_view part) {
    return key.empty() ? std::string(part) : fmt::format("{}.{}", key, part);
  };
  if (torch::inline_tensor_in(value) || (value.is_object() && value.contains("$tensor"))) {
    keys.insert(key);
  } else if (value.is_object() && !value.contains("$type")) {
    for (const auto& [name, child] : value.items()) find_added_keys(child, below(name), keys);
  } else if (value.is_object() && value.contains("pairs") && value["pairs"].is_array()) {
    for (const Json& pair : value["pairs"]) {
      if (!pair.is_array() || pair.size() != 2) continue;
      const std::string name = key_text(pair[0]);
      find_added_keys(pair[1], below(name), keys);
    }
  } else if (value.is_object() && value.contains("items") &&
             value["items"].is_array()) {  // a tuple
    find_added_keys(value["items"], key, keys);
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i)
      find_added_keys(value[i], below(std::to_string(i)), keys);
  }
}

/// Returns the keys of all such tensors in the client state.
std::set<std::string> added_keys(const Catalog& catalog) {
  std::set<std::string> keys;
  find_added_keys(catalog.client_state, "", keys);
  return keys;
}

/// Tensors that the sink adds to those of the catalog: step counters and second names.
bool is_addition(const std::string& key, const Catalog& catalog) {
  return std::ranges::any_of(own_layouts(), [&](const OwnLayout& layout) {
    if (key.starts_with(layout.optimizer_key("state.")) && key.ends_with(".step")) return true;
    return std::ranges::any_of(
        catalog.aliases, [&](const Alias& alias) { return key == layout.model_key(alias.fqn); });
  });
}

}  // namespace

// FSDP2 trains 16-bit runs on fp32 parameters, which it casts during the step. The master weights
// are therefore the model's, and an optimizer for them has fp32 states.
std::vector<std::string> own_keys(const Catalog& catalog, const OwnLayout& layout) {
  constexpr std::string_view kModel = "model.", kPlain = "optimizer.";
  std::vector<std::string> keys = flat_paths(catalog, kModel);
  std::unordered_map<std::string_view, std::size_t> masters;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (catalog.tensors[i].state == state::kFp32) masters.emplace(catalog.tensors[i].fqn, i);
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const TensorInfo& tensor = catalog.tensors[i];
    const auto master = masters.find(tensor.fqn);
    if (tensor.state == kExtraState) {
      keys[i] = tensor.fqn;
    } else if (tensor.state == state::kWeights && master != masters.end()) {
      keys[master->second] = layout.model_key(tensor.fqn);
      keys[i] = layout.optimizer_key(fmt::format("state.{}.{}", tensor.fqn, kHalfState));
    } else if (keys[i].starts_with(kPlain)) {
      const std::string state = layout.is_flat
                                    ? keys[i].substr(keys[i].rfind('.') + 1)
                                    : dotted_state(keys[i].substr(keys[i].rfind('.') + 1));
      keys[i] = layout.optimizer_key(fmt::format("state.{}.{}", tensor.fqn, state));
    } else if (keys[i].starts_with(kModel)) {
      keys[i] = layout.model_key(keys[i].substr(kModel.size()));
    }
  }
  return keys;
}

std::optional<Arrangement> arrange_own(const StateDict& state, const std::string& where) {
  const auto text = std::ranges::find(state.objects, kTextKey, &ObjectEntry::key);
  if (text == state.objects.end()) return std::nullopt;
  if (!text->value.is_string()) {
    raise(ErrorCode::Corrupt, fmt::format("{}: {} is no text", where, kTextKey),
          "the file is damaged: use a copy or another checkpoint");
  }
  Arrangement out;
  out.notes = state.notes;
  out.losses = state.losses;
  for (const LostKey& lost : state.lost_keys)
    out.losses.push_back(
        {lost.shape ? Role::Weight : Role::ClientValue, lost.key, lost.why, lost.shape});
  for (const TensorEntry& tensor : state.tensors) {
    TensorInfo& info = out.catalog.tensors.emplace_back();
    info.fqn = tensor.key;
    info.dtype = tensor.dtype;
    info.shape = tensor.shape;
  }
  const std::vector<bool> known = restore_catalog(text->value.get<std::string>(), out.catalog,
                                                  fmt::format("{}: {}", where, kTextKey));
  std::vector<TensorInfo> tensors;
  const std::set<std::string> added = added_keys(out.catalog);
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (!known[i]) {
      const std::string& key = state.tensors[i].key;
      if (added.contains(key) || is_addition(key, out.catalog)) continue;
      raise(ErrorCode::Corrupt,
            fmt::format("{}: {} lacks the tensor {}", where, kTextKey,
                        unishard::quote(state.tensors[i].key)),
            fmt::format("the metadata is damaged, or another program has changed the state dict: "
                        "save it without {}, which describes the original",
                        kTextKey));
    }
    tensors.push_back(std::move(out.catalog.tensors[i]));
    out.entries.push_back(i);
  }
  out.catalog.tensors = std::move(tensors);
  sort_tensors(out);
  return out;
}

}  // namespace unishard::converters::dcp
