#include "formats/dcp/flat_parameters.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"

#include "formats/dcp/keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_set>

namespace unishard::converters::dcp {
namespace {

constexpr std::string_view kFlat = "_flat_param", kModel = "model.";

struct Parameter {
  std::string fqn;
  Shape shape;
};

/// Returns "blocks.0." for "model.blocks.0._flat_param".
std::string unit_of(const TensorEntry& tensor) {
  std::string unit = tensor.key.substr(0, tensor.key.size() - kFlat.size());
  if (unit.starts_with(kModel)) unit.erase(0, kModel.size());
  return without_wrappers(std::move(unit));
}

/// Returns the parameters with an optimizer state of their own shape, in the order of the states.
std::vector<Parameter> known_parameters(const StateDict& state) {
  const std::vector<std::string> prefixes = optimizer_prefixes(state);
  std::vector<Parameter> out;
  std::unordered_set<std::string> seen;
  for (const TensorEntry& tensor : state.tensors) {
    const auto key = parse_state_key(tensor.key, tensor.path, prefixes);
    if (!key || key->state == "step" || is_number(key->fqn)) continue;
    if (seen.insert(key->fqn).second) out.push_back({key->fqn, tensor.shape});
  }
  return out;
}

/// Returns elements `range` of a vector as a tensor of `shape`.
torch::TensorView slice(const torch::TensorView& vector, ElementRange range, const Shape& shape) {
  torch::TensorView view = vector;
  view.offset += range.begin;
  view.shape = shape;
  view.strides.assign(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) view.strides[d - 1] = view.strides[d] * shape[d];
  return view;
}

}  // namespace

TensorEntry part_of_flat(const TensorEntry& flat, const std::string& fqn, const Shape& shape,
                         ElementRange place, Items& items) {
  TensorEntry out{
      std::string(kModel) + fqn, {{"model", false}, {fqn, false}}, flat.dtype, shape, {}, {}};
  out.is_distributed = true;
  for (const Chunk& chunk : flat.chunks) {
    const std::uint64_t begin = chunk.box.offsets[0];
    const ElementRange common = intersect(place, {begin, begin + chunk.box.sizes[0]});
    if (common.empty()) continue;
    const auto vector = items.tensor(chunk.item, chunk.box.elements() * size_of(flat.dtype));
    if (vector->shape != chunk.box.sizes || !vector->contiguous()) {
      raise(ErrorCode::Corrupt, fmt::format("tensor {}, {}: the item is not the vector that its "
                                            "chunk describes",
                                            unishard::quote(flat.key), items.place(chunk.item)));
    }
    std::uint64_t at = common.begin - begin;
    for (Box& box : boxes_of(shape, {common.begin - place.begin, common.end - place.begin})) {
      const std::uint64_t count = box.elements();
      const std::uint32_t item = items.add(slice(*vector, {at, at + count}, box.sizes));
      out.chunks.push_back({std::move(box), item, chunk.rank});
      at += count;
    }
  }
  return out;
}

bool is_flat_parameter(const TensorEntry& tensor) {
  const std::size_t before = tensor.key.size() - std::min(kFlat.size(), tensor.key.size());
  return tensor.shape.size() == 1 && tensor.key.ends_with(kFlat) &&
         (before == 0 || tensor.key[before - 1] == '.');
}

void refuse_flat_parameter(const TensorEntry& tensor, const std::string& where,
                           const std::string& why) {
  raise(ErrorCode::Unsupported,
        fmt::format("{}: {} is a flat parameter of FSDP1 (LOCAL_STATE_DICT): {}", where, tensor.key,
                    why),
        "give its names and shapes with --like FILE, written by torch.save(model.state_dict(), "
        "FILE) of such a model, or load it into the model that saved it, and save that with "
        "SHARDED_STATE_DICT or FULL_STATE_DICT");
}

void take_apart_flat_parameters(StateDict& state, const std::string& where) {
  std::map<std::string, std::vector<Parameter>> units;
  for (const TensorEntry& tensor : state.tensors) {
    if (is_flat_parameter(tensor)) units.emplace(unit_of(tensor), std::vector<Parameter>());
  }
  if (units.empty()) return;
  for (Parameter& parameter : known_parameters(state)) {
    // The innermost unit that contains it.
    auto best = units.end();
    for (auto unit = units.begin(); unit != units.end(); ++unit) {
      if (parameter.fqn.starts_with(unit->first) &&
          (best == units.end() || unit->first.size() > best->first.size()))
        best = unit;
    }
    if (best != units.end()) best->second.push_back(std::move(parameter));
  }
  std::vector<TensorEntry> tensors;
  for (TensorEntry& tensor : state.tensors) {
    if (!is_flat_parameter(tensor)) {
      tensors.push_back(std::move(tensor));
      continue;
    }
    const std::vector<Parameter>& parameters = units.at(unit_of(tensor));
    for (const Chunk& chunk : tensor.chunks)
      check_inside(tensor.shape, chunk.box,
                   fmt::format("{}: tensor {}", where, unishard::quote(tensor.key)));
    std::uint64_t total = 0;
    for (const Parameter& parameter : parameters)
      total = checked_add(total, element_count(parameter.shape), tensor.key);
    if (total != tensor.shape[0] || parameters.empty()) {
      refuse_flat_parameter(
          tensor, where,
          fmt::format("the optimizer's states tell the shapes of {} of its {} elements", total,
                      tensor.shape[0]));
    }
    std::uint64_t at = 0;
    for (const Parameter& parameter : parameters) {
      const std::uint64_t count = element_count(parameter.shape);
      tensors.push_back(
          part_of_flat(tensor, parameter.fqn, parameter.shape, {at, at + count}, *state.items));
      at += count;
    }
    state.notes.push_back(fmt::format(
        "{}: taken apart by names, shapes and order of the optimizer's states", tensor.key));
  }
  state.tensors = std::move(tensors);
}

}  // namespace unishard::converters::dcp
