#include "formats/deepspeed/universal_parts.hpp"

#include "unishard/converters/cut_patterns.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string_view>

namespace unishard::converters::deepspeed {
namespace {

using Views = std::map<std::string, TensorView, std::less<>>;

Views module_of(const TorchFile& file) {
  Views views;
  Notes unread;
  const auto module = present(file.root(), "module");
  if (!module) return views;
  for (NamedView& entry : named_views(file, *module, "module entry", unread)) {
    // Stage 3 leaves empty tensors in the places of parameters.
    if (entry.view.storage && entry.view.elements() > 0)
      views.emplace(entry.name, std::move(entry.view));
  }
  return views;
}

/// Returns the view of a box of a tensor.
TensorView box_view(const TensorView& tensor, const Shape& offsets, const Shape& sizes) {
  TensorView view = tensor;
  view.shape = sizes;
  for (std::size_t d = 0; d < sizes.size(); ++d) view.offset += offsets[d] * tensor.strides[d];
  return view;
}

bool rounds_to_part(const TensorView& master, const TensorView& part) {
  constexpr std::uint64_t kCompared = 64;
  const std::uint64_t count = std::min(kCompared, part.elements());
  return rounds_to(floats(master, 0, count), part.dtype, floats(part, 0, count));
}

}  // namespace

void UniversalParts::add(std::uint32_t rank, TorchFile file, const ShapeGroups& shapes) {
  Views views = module_of(file);
  if (!first_) {
    first_.emplace(std::move(file));
    try {
      rules_.emplace(present(first_->root(), kCutPatterns), first_->name());
    } catch (const Error&) {  // a universal checkpoint is read without rules
    }
  }
  for (const auto& group : shapes) {
    for (const NamedShape& named : group) {
      Part part{named.shape, std::nullopt};
      const auto found = views.find(named.fqn);
      if (found != views.end() && found->second.shape == named.shape)
        part.view = std::move(found->second);
      parameters_[named.fqn].insert_or_assign(rank, std::move(part));
    }
  }
}

std::vector<const UniversalParts::Part*> UniversalParts::parts_of(const std::string& fqn) const {
  const auto found = parameters_.find(fqn);
  if (found == parameters_.end() || tensor_ranks_ == 0) return {};
  const std::uint64_t stage = found->second.begin()->first / tensor_ranks_;
  std::vector<const Part*> parts;
  for (const auto& [rank, part] : found->second) {
    if (rank / tensor_ranks_ == stage) parts.push_back(&part);
  }
  return parts.size() == tensor_ranks_ ? parts : std::vector<const Part*>();
}

std::optional<TensorCut> UniversalParts::cut_of(const std::string& fqn,
                                                const std::vector<const Part*>& parts) {
  if (parts.empty() || !rules_) return std::nullopt;
  std::vector<Shape> shapes;
  shapes.reserve(parts.size());
  for (const Part* part : parts) shapes.push_back(part->shape);
  try {
    return rules_->cut_of(fqn, shapes);
  } catch (const Error&) {  // zero/ is whole, whatever the rules say
    return std::nullopt;
  }
}

void UniversalParts::check_shape(const std::string& fqn, const Shape& whole,
                                 const std::string& where) {
  const auto cut = cut_of(fqn, parts_of(fqn));
  if (!cut || cut->shape == whole) return;
  raise(ErrorCode::Corrupt,
        fmt::format("{}: zero/{}/fp32.pt has the shape ({}), and the parts that the model files of "
                    "the ranks list make ({})",
                    where, fqn, fmt::join(whole, ", "), fmt::join(cut->shape, ", ")),
        "convert the regular checkpoint again");
}

bool UniversalParts::differs(const Parameter& parameter) {
  const auto master = std::ranges::find(parameter.states, state::kFp32, &StatePieces::state);
  if (master == parameter.states.end() || master->pieces.size() != 1) return false;
  const TensorView& whole = master->pieces.front().view;
  const std::vector<const Part*> parts = parts_of(parameter.fqn);
  const auto cut = cut_of(parameter.fqn, parts);
  if (!cut || cut->is_mean || cut->shape != whole.shape) return false;
  return std::ranges::any_of(cut->boxes, [&](const SharedBox& box) {
    const SharedBox::Copy& copy = box.copies.front();
    const auto& part = parts.at(copy.shard)->view;
    return part && info(part->dtype).kind == Kind::Float &&
           !rounds_to_part(box_view(whole, box.whole.offsets, box.whole.sizes),
                           box_view(*part, copy.offsets, box.whole.sizes));
  });
}

std::vector<std::string> UniversalParts::differing(const ParameterTable& parameters) {
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters.all()) {
    if (differs(parameter)) names.push_back(parameter.fqn);
  }
  return names;
}

}  // namespace unishard::converters::deepspeed
