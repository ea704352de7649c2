#include "formats/torch/own_file.hpp"

#include "containers/number_value.hpp"
#include "containers/pickle_json.hpp"
#include "formats/torch/training_layout.hpp"

#include <optional>
#include <string_view>
#include <utility>

namespace unishard::converters::torch {
namespace {

constexpr int kDepth = 3;  ///< of an optimizer in the object

bool is_optimizer(const Json& value) {
  return member(value, "param_groups") != nullptr && member(value, "state") != nullptr;
}

/// Appends the optimizers below a value.
void find_optimizers(const Json& value, int depth, std::vector<const Json*>& found) {
  if (is_optimizer(value)) return found.push_back(&value);
  if (depth == 0 || !value.is_structured()) return;
  for (const Json& child : value) find_optimizers(child, depth - 1, found);
}

/// Calls `visit` with the states of each parameter.
template <class Visit>
void for_each_state(const Json& states, const Visit& visit) {
  if (states.is_object() && states.contains("pairs")) {
    for (const Json& pair : states["pairs"]) visit(pair[1]);
  } else if (states.is_object()) {
    for (const Json& state : states) visit(state);
  }
}

class Steps {
 public:
  Steps(const TorchFile& file, const ObjectTree& tree) : file_(file) {
    for (const NamedTensor& tensor : tree.tensors) tensors_.emplace(tensor.name, &tensor.value);
  }

  std::optional<double> value_of(const Json& step) const {
    if (step.is_number()) return step.get<double>();
    if (!step.is_object() || !step.contains("$tensor")) return std::nullopt;
    const auto found = tensors_.find(step["$tensor"].get_ref<const std::string&>());
    if (found == tensors_.end()) return std::nullopt;
    return number_of(file_, *found->second);
  }

 private:
  const TorchFile& file_;
  std::unordered_map<std::string_view, const Value*> tensors_;
};

}  // namespace

FileScalars scalars_of(const TorchFile& file, const ObjectTree& tree) {
  FileScalars out;
  std::vector<const Json*> optimizers;
  find_optimizers(tree.content, kDepth, optimizers);
  if (optimizers.size() == 1) {
    out.groups = *member(*optimizers.front(), "param_groups");
    const Steps steps(file, tree);
    for_each_state(*member(*optimizers.front(), "state"), [&](const Json& state) {
      const Json* const step = member(state, "step");
      if (const auto value = step == nullptr ? std::nullopt : steps.value_of(*step))
        out.steps.insert(*value);
    });
  }
  if (tree.content.is_object() && !tree.content.contains("$type")) {
    out.values = Json::object();
    for (const auto& [key, value] : tree.content.items())
      if (key != kOurKey && !is_optimizer(value)) out.values[key] = value;
  }
  return out;
}

}  // namespace unishard::converters::torch
