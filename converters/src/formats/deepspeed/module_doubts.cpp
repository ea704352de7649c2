#include "formats/deepspeed/module_doubts.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/text.hpp"

#include "containers/equal_elements.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace unishard::converters::deepspeed {
namespace {

using Views = std::unordered_map<std::string_view, const TensorView*>;
using Names = std::vector<std::string>;

constexpr const char* kOtherSave =
    "use another checkpoint: its weights may be those of another parameter";

Views views_of(const ModelFile& model) {
  Views views;
  for (const NamedView& entry : model.module) views.emplace(entry.name, &entry.view);
  return views;
}

/// Stage 3 leaves empty tensors in the places of parameters.
bool has_values(const TensorView& view) { return view.storage && view.elements() > 0; }

/// Compares the pairs of shared_params.
class Ties {
 public:
  Ties(const ModelFile& model, const ParameterTable& parameters)
      : model_(model), parameters_(parameters), views_(views_of(model)) {
    for (const NamedShape& frozen : model.frozen_shapes) frozen_.insert(frozen.fqn);
    for (const auto& [second, first] : model.aliases) firsts_.emplace(second, first);
  }

  void check(Notes& notes) {
    for (const auto& [second, first] : model_.aliases) {
      if (!parameters_.find(second)) check_pair(second, resolved(first));
    }
    say(differing_,
        "have other values in the module than the first names that shared_params ties "
        "them to, whose values are kept",
        notes);
    if (model_.has_module && !model_.module.empty())
      say(missing_, "are in shared_params, and the module has no such names", notes);
  }

 private:
  std::string_view resolved(std::string_view name) const {
    for (std::size_t hops = 0; hops < firsts_.size() && firsts_.contains(name); ++hops)
      name = firsts_.at(name);
    return name;
  }

  void check_pair(const std::string& second, std::string_view first) {
    if (frozen_.contains(second))
      raise(ErrorCode::Corrupt,
            fmt::format("{}: shared_params ties {} to {}, and frozen_param_shapes lists it as a "
                        "parameter of its own",
                        model_.name, quote(second), quote(first)),
            kOtherSave);
    const auto own = views_.find(second), target = views_.find(first);
    if (own == views_.end()) return missing_.push_back(second);
    if (target == views_.end() || !has_values(*own->second) || !has_values(*target->second)) return;
    if (own->second->shape != target->second->shape)
      raise(
          ErrorCode::Corrupt,
          fmt::format("{}: shared_params ties {} to {}, and their shapes in the module are ({}) "
                      "and ({})",
                      model_.name, quote(second), quote(first), fmt::join(own->second->shape, ", "),
                      fmt::join(target->second->shape, ", ")),
          kOtherSave);
    if (!equal_elements(*own->second, *target->second)) differing_.push_back(second);
  }

  void say(const Names& names, std::string_view what, Notes& notes) const {
    if (!names.empty())
      notes.add(
          fmt::format("{} second names, first {}, {}", names.size(), quote(names.front()), what));
  }

  const ModelFile& model_;
  const ParameterTable& parameters_;
  const Views views_;
  std::unordered_set<std::string_view> frozen_;
  std::unordered_map<std::string_view, std::string_view> firsts_;
  Names differing_, missing_;
};

/// The names that the lists beside the module have.
std::unordered_set<std::string_view> listed_names(const ModelFile& model,
                                                  const ParameterTable& parameters) {
  std::unordered_set<std::string_view> names;
  for (const Parameter& parameter : parameters.all()) names.insert(parameter.fqn);
  for (const NamedShape& frozen : model.frozen_shapes) names.insert(frozen.fqn);
  if (model.buffer_names) names.insert(model.buffer_names->begin(), model.buffer_names->end());
  for (const auto& [second, first] : model.aliases) names.insert({second, first});
  return names;
}

/// What layers add to their state_dict() beside parameters and buffers.
bool is_added(std::string_view name) { return is_scale(name) || name.ends_with("._extra_state"); }

void doubt_unlisted(const ModelFile& model, const ParameterTable& parameters, Notes& notes) {
  if (!model.buffer_names || !model.param_shapes || !model.lists_frozen) return;
  const auto listed = listed_names(model, parameters);
  Names unlisted;
  std::unordered_set<std::string_view> seen;
  for (const auto* entries : {&model.module, &model.frozen_fragments}) {
    for (const NamedView& entry : *entries) {
      const bool is_new = seen.insert(entry.name).second;
      // Stage 3 has an empty tensor in the place of a parameter, which is lost then.
      if (is_new && entry.view.elements() > 0 && !listed.contains(entry.name) &&
          !is_added(entry.name))
        unlisted.push_back(entry.name);
    }
  }
  if (unlisted.empty()) return;
  notes.add(
      fmt::format("{} tensors of the model, first {}, are in none of the lists param_shapes, "
                  "frozen_param_shapes, buffer_names and shared_params: they have names that "
                  "the model's own state_dict() gives, or were renamed",
                  unlisted.size(), quote(unlisted.front())));
}

bool is_enabled(const Json& config, const char* section) {
  return config.is_object() && config.contains(section) && config[section].is_object() &&
         config[section].value("enabled", Json()) == Json(true);
}

}  // namespace

void check_ties(const ModelFile& model, const ParameterTable& parameters, Notes& notes) {
  Ties(model, parameters).check(notes);
}

void doubt_module(const ModelFile& model, const ParameterTable& parameters, Notes& notes) {
  doubt_unlisted(model, parameters, notes);
  if (!model.has_module) return;
  const Views views = views_of(model);
  Names missing;
  for (const Parameter& parameter : parameters.all()) {
    if (!views.contains(parameter.fqn)) missing.push_back(parameter.fqn);
  }
  if (missing.empty()) return;
  notes.add(
      fmt::format("the module lacks {} trained parameters, first {}: the optimizer's fp32 "
                  "copies are read, and weights of another precision are lost",
                  missing.size(), quote(missing.front())));
}

void doubt_missing_masters(const ModelFile& model, Notes& notes) {
  const Json& config = model.config;
  const bool is_bf16 = is_enabled(config, "bf16") || is_enabled(config, "bfloat16");
  if (model.param_shapes) return;
  const bool has_optimizer = config.contains("optimizer") && config["optimizer"].is_object();
  const Json stage = zero_setting(config, "stage");
  if (!has_optimizer || (stage.is_number_integer() && stage != 0)) return;
  const bool is_rounded = is_bf16 || is_enabled(config, "fp16");
  if (!is_rounded && model.global_steps == 0) return;
  if (!is_rounded)
    return notes.add(fmt::format(
        "{} has no optimizer, and its ds_config has one: the states of the optimizer are lost",
        model.name));
  notes.add(
      fmt::format("{} has no optimizer, and its ds_config has {} and one: the fp32 weights "
                  "that it would hold are lost, and those of the module are rounded",
                  model.name, is_bf16 ? "bf16" : "fp16"));
}

std::optional<std::string> doubt_about_tag(const Path& folder, const Catalog& catalog) {
  constexpr std::string_view kTag = "global_step";
  const std::string tag = folder.filename().string();
  if (!tag.starts_with(kTag)) return std::nullopt;
  std::int64_t told = 0;
  const char* const end = tag.data() + tag.size();
  const auto [at, error] = std::from_chars(tag.data() + kTag.size(), end, told);
  if (error != std::errc() || at != end) return std::nullopt;
  const Json& position = catalog.data_position;
  const Json counted = position.is_object() ? position.value("global_steps", Json()) : Json();
  if (!counted.is_number_integer() || counted == told || catalog.step == told) return std::nullopt;
  return fmt::format(
      "the files count {} global steps, and their folder is {}: they may be another save's",
      counted.dump(), tag);
}

}  // namespace unishard::converters::deepspeed
