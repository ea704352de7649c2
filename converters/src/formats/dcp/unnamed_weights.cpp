#include "formats/dcp/unnamed_weights.hpp"

#include "unishard/format/text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace unishard::converters::dcp {
namespace {

double elements_of(const std::vector<Shape>& shapes) {
  double elements = 0;  // shapes of a forged file may have any product
  for (const Shape& shape : shapes) elements += static_cast<double>(element_count(shape));
  return elements;
}

/// Returns the shapes of `numbered` that remain when each tensor of the model has one of them.
std::vector<Shape> without_tensor(const TrainedShapes& shapes) {
  std::map<Shape, std::size_t> free;
  for (const Shape& shape : shapes.model) ++free[shape];
  std::vector<Shape> missing;
  for (const Shape& shape : shapes.numbered) {
    if (std::size_t& left = free[shape]; left > 0) {
      --left;
    } else {
      missing.push_back(shape);
    }
  }
  return missing;
}

/// Whether what is missing may be a parameter of a loss or of another model.
bool may_be_elsewhere(const TrainedShapes& shapes, const std::vector<Shape>& missing) {
  const auto is_elsewhere = [&](const Shape& shape) {
    return std::ranges::count(shapes.elsewhere, shape) > 0;
  };
  const auto is_number = [](const Shape& shape) { return element_count(shape) == 1; };
  return shapes.may_train_others || std::ranges::any_of(missing, is_elsewhere) ||
         std::ranges::all_of(missing, is_number);
}

std::string text_about(const TrainedShapes& shapes, const std::vector<Shape>& missing) {
  std::vector<std::string> sizes;
  sizes.reserve(missing.size());
  for (const Shape& shape : missing) sizes.push_back(fmt::format("({})", fmt::join(shape, " x ")));
  return fmt::format(
      "the optimizer has states of {} parameters, and the model has {} tensors that may be "
      "trained; none is left for {}",
      shapes.numbered.size(), shapes.model.size(), first_names(sizes));
}

}  // namespace

UnnamedWeights find_unnamed_weights(const TrainedShapes& shapes) {
  if (shapes.model.empty() || shapes.numbered.size() <= shapes.model.size()) return {};
  const std::vector<Shape> missing = without_tensor(shapes);
  const std::string text = text_about(shapes, missing);
  if (may_be_elsewhere(shapes, missing) ||
      elements_of(shapes.numbered) <= elements_of(shapes.model))
    return {.remark = text + ": the optimizer trains another module too, or weights are missing"};
  return {.loss = Loss{.role = Role::Weight,
                       .name = std::string(kUnnamedWeight),
                       .why = text + ", unless the optimizer trains a module that was not saved",
                       .is_broken = true}};
}

}  // namespace unishard::converters::dcp
