#include "formats/trainer/module_shapes.hpp"

#include "unishard/format/error.hpp"

#include <algorithm>
#include <string>

namespace unishard::converters::trainer {
namespace {

using torch::TorchFile;
using torch::Value;

std::optional<Value> find_dict(Value dict, std::string_view key) {
  if (!dict.is_dict()) return std::nullopt;
  const std::optional<Value> found = dict.find(key);
  return found && found->is_dict() ? found : std::nullopt;
}

void add_shapes(const TorchFile& file, Value states, std::set<Shape>& shapes) {
  if (!states.is_dict()) return;
  for (std::size_t i = 0; i < states.pair_count(); ++i) {
    if (!TorchFile::is_tensor(states.value(i))) continue;
    try {
      shapes.insert(file.tensor(states.value(i)).shape);
    } catch (const Error&) {
      continue;  // the reader names what it cannot read
    }
  }
}

}  // namespace

std::size_t count_parameters(Value optimizer) {
  const auto groups = optimizer.is_dict() ? optimizer.find("param_groups") : std::nullopt;
  if (!groups || !groups->is_sequence()) return 0;
  std::size_t count = 0;
  for (std::size_t g = 0; g < groups->size(); ++g) {
    const Value group = (*groups)[g];
    const auto numbers = group.is_dict() ? group.find("params") : std::nullopt;
    if (numbers && numbers->is_sequence()) count += numbers->size();
  }
  return count;
}

ModuleShapes::ModuleShapes(std::string_view model_type, const TorchFile* optimizer)
    : fused_(FusedParameters::of(model_type)) {
  if (!fused_ || optimizer == nullptr) return;
  parameters_ = count_parameters(optimizer->root());
  const std::optional<Value> states = find_dict(optimizer->root(), "state");
  if (!states) return;
  for (std::size_t i = 0; i < states->pair_count(); ++i)
    add_shapes(*optimizer, states->value(i), states_);
}

std::vector<std::optional<ModulePlace>> ModuleShapes::places(
    std::span<const dcp::SafetensorsPiece> pieces) const {
  std::vector<std::optional<ModulePlace>> none(pieces.size());
  if (!fused_) return none;
  std::vector<ShapedName> files;
  files.reserve(pieces.size());
  for (const dcp::SafetensorsPiece& piece : pieces) files.push_back({piece.key, piece.box.sizes});
  std::vector<std::optional<ModulePlace>> places = fused_->places(files);
  return has_trained(places) ? places : none;
}

/// transformers 4 trained the experts one by one, as the files have them.
bool ModuleShapes::has_trained(const std::vector<std::optional<ModulePlace>>& places) const {
  std::set<std::string_view> parameters;
  std::size_t whole = 0;
  bool has_state = false;
  for (const std::optional<ModulePlace>& place : places) {
    if (!place) {
      ++whole;
      continue;
    }
    parameters.insert(place->parameter);
    has_state |= fused_->are_experts(place->parameter) && states_.contains(place->shape);
  }
  if (has_state) return true;
  const bool has_experts = std::ranges::any_of(
      parameters, [&](std::string_view name) { return fused_->are_experts(name); });
  return has_experts && states_.empty() && parameters.size() + whole == parameters_;
}

}  // namespace unishard::converters::trainer
