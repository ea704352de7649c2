#include "formats/torch/training_file.hpp"

#include "containers/object_tree.hpp"
#include "containers/pickle_json.hpp"
#include "core/file_records.hpp"
#include "formats/dcp/key_layout.hpp"
#include "formats/dcp/keys.hpp"
#include "formats/dcp/training_object.hpp"
#include "formats/torch/file_arrangement.hpp"
#include "formats/torch/recorded_file.hpp"
#include "formats/torch/training_layout.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

namespace unishard::converters::torch {

bool is_training_object(Value root) {
  if (!root.is_dict() || root.find(kOurKey) || root.find("")) return false;
  return dcp::is_training_object(root);
}

bool has_unread_optimizer(Value root) {
  if (root.is_dict() && root.find(kOurKey)) return false;
  return !is_training_object(root) && dcp::has_optimizer(root);
}

namespace {

/// Returns the steps of a run of Lightning, which SGD does not count.
std::optional<double> steps_of_lightning(const Json& object) {
  if (!object.is_object() || !object.contains("pytorch-lightning_version")) return std::nullopt;
  const Json steps = object.value("global_step", Json());
  const bool is_count = steps.is_number_integer() && steps >= 0;
  return is_count ? std::optional(steps.get<double>()) : std::nullopt;
}

/// Whether the numbers of the optimizer got no names.
bool is_undecided(const Catalog& catalog) {
  return std::ranges::any_of(catalog.groups, [](const Json& group) {
    return std::ranges::any_of(group["params"], [](const Json& name) {
      return name.is_string() && dcp::is_numbered(name.get_ref<const std::string&>());
    });
  });
}

/// Returns the keys of a file and its `object`, with {"$tensor": key} for each tensor; null where a
/// copy of the object would lose names: those that the user's word gives the numbers of an
/// optimizer, or those of a tied weight, whose copies are one tensor with the first of them.
Json layout_of(Json object, const dcp::StateDict& state, const dcp::Arrangement& arrangement) {
  const bool is_told = state.assumes_model_order && !is_undecided(arrangement.catalog);
  if (is_told && !name_parameters(object, arrangement.catalog)) return {};
  const auto is_later = [](const auto& copy) { return copy.first < copy.second; };
  if (std::ranges::any_of(arrangement.copies, is_later)) return {};
  Json layout = dcp::describe_keys(state, arrangement);
  layout["object"] = std::move(object);
  return layout;
}

}  // namespace

dcp::StateDict read_training_file(Storage& storage, const TorchFile& file) {
  dcp::StateDictBuilder builder(storage);
  builder.numbers_repeated_keys = true;
  builder.out.module_part = ModulePart::Replica;
  const Value root = file.root();
  // A file whose members use the same parts a thousand times is refused here as a whole.
  auto object = std::make_shared<Json>(describe(root, file.pickle().bytes().size()).content);
  dcp::add_training_object(file, /*rank=*/0, builder);
  builder.out.step = steps_of_lightning(*object);
  note_oddities(file, builder.out.notes);
  find_emptied_weights(*object, {}, builder.out.losses);
  builder.out.layout = [object](const dcp::StateDict& state, const dcp::Arrangement& arrangement) {
    return layout_of(*object, state, arrangement);
  };
  builder.out.complete = [object](const dcp::StateDict& state, dcp::Arrangement& arrangement) {
    Json places = describe_arrangement(*object, state, arrangement);
    const Json layout = layout_of(*object, state, arrangement);
    std::string text = layout.is_null() ? "" : text_of_file(layout, arrangement.catalog);
    if (!text.empty()) places[kTorchObject] = std::move(text);
    arrangement.catalog.producer[std::string(kTorchArrangement)] = std::move(places);
  };
  return builder.finish(file.name());
}

}  // namespace unishard::converters::torch
