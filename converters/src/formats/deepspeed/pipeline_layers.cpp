#include "formats/deepspeed/pipeline_layers.hpp"

#include "unishard/format/error.hpp"

#include "containers/equal_elements.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

namespace unishard::converters::deepspeed {
namespace {

constexpr std::string_view kTied = "tied_modules.";

/// Returns the layer and the local name of "<layer>.<local>"; nullopt for other names.
std::optional<std::pair<std::uint32_t, std::string_view>> split_layer(std::string_view fqn) {
  const std::size_t dot = fqn.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const auto number = match_numbers("#", fqn.substr(0, dot));
  if (!number) return std::nullopt;
  return std::pair(number->front(), fqn.substr(dot + 1));
}

/// Returns "tied_modules.<key>." of a tied tensor; an empty text for other names.
std::string_view tied_prefix(std::string_view fqn) {
  if (!fqn.starts_with(kTied)) return {};
  const std::size_t dot = fqn.find('.', kTied.size());
  return dot == std::string_view::npos ? std::string_view() : fqn.substr(0, dot + 1);
}

const NamedView* find_entry(const ModuleFile& layer, std::string_view name) {
  const auto found = std::ranges::find(layer.entries, name, &NamedView::name);
  return found == layer.entries.end() ? nullptr : &*found;
}

bool has_size(const NamedView& entry, const ToldParameter& told) {
  return told.shape ? entry.view.shape == *told.shape : entry.view.elements() == told.elements;
}

/// Returns whether two layers have the same entries with the same beginnings.
bool same_values(const ModuleFile& one, const ModuleFile& other) {
  constexpr std::uint64_t kComparedStart = 64;
  if (one.entries.size() != other.entries.size()) return false;
  return std::ranges::all_of(one.entries, [&](const NamedView& entry) {
    const NamedView* found = find_entry(other, entry.name);
    if (found == nullptr || found->view.shape != entry.view.shape ||
        found->view.dtype != entry.view.dtype) {
      return false;
    }
    if (!entry.view.storage || !found->view.storage) return true;
    const std::uint64_t count = std::min(kComparedStart, entry.view.elements());
    return sampled_bytes(entry.view, 0, count) == sampled_bytes(found->view, 0, count);
  });
}

class LayerAssignment {
 public:
  LayerAssignment(std::vector<ModuleFile> layers, const std::vector<StageFacts>& stages,
                  const std::string& where)
      : layers_(std::move(layers)), stages_(stages), where_(where), tied_(stages.size()) {
    for (std::size_t i = 0; i < layers_.size(); ++i)
      by_number_.emplace(layers_[i].numbers.layer, i);
    own_.resize(layers_.size());
  }

  void check() {
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) collect(stage);
    check_order();
    if (std::ranges::all_of(stages_, &StageFacts::tells_buffers)) refuse_unnamed_buffers();
  }

  std::vector<std::vector<ModuleFile>> assign(Notes& notes) {
    check();
    std::vector<std::vector<ModuleFile>> out(stages_.size());
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      auto [stage, prefix] = place_of(i);
      if (!prefix.empty()) {
        const auto [tied, is_new] = tied_layers_.emplace(std::pair(stage, prefix), layers_[i]);
        if (!is_new && same_values(tied->second, layers_[i])) continue;  // the same module
        if (!is_new) prefix.clear();  // a frozen layer of the same shapes
      }
      if (prefix.empty() && !own_[i] && !layers_[i].entries.empty())
        unnamed_.push_back(file_name(layers_[i]));
      if (prefix.empty()) prefix = fmt::format("{}.", layers_[i].numbers.layer);
      for (NamedView& entry : layers_[i].entries) entry.name = prefix + entry.name;
      out[stage].push_back(std::move(layers_[i]));
    }
    if (!unnamed_.empty() && has_groups()) {
      notes.add(
          fmt::format("{}: no stage names a parameter or a buffer of these files: the layers "
                      "are frozen, or another save of this tag left them",
                      fmt::join(unnamed_, ", ")));
    }
    return out;
  }

 private:
  /// Takes what the files of a stage tell.
  void collect(std::size_t stage) {
    const StageFacts& facts = stages_[stage];
    for (const std::string& buffer : facts.buffers) take_name(stage, buffer, nullptr);
    if (!facts.groups) return;
    for (const auto& group : *facts.groups) {
      for (const ToldParameter& told : group) {
        if (const auto prefix = tied_prefix(told.fqn); !prefix.empty()) {
          tied_[stage][std::string(prefix)].push_back(&told);
        } else {
          take_name(stage, told.fqn, &told);
        }
      }
    }
  }

  void take_name(std::size_t stage, const std::string& fqn, const ToldParameter* told) {
    const auto split = split_layer(fqn);
    if (!split) return;
    const auto found = by_number_.find(split->first);
    if (found == by_number_.end()) raise_missing(split->first, fqn, stage);
    const ModuleFile& layer = layers_[found->second];
    auto& own = own_[found->second];
    if (own && *own != stage) {
      raise(
          ErrorCode::Corrupt,
          fmt::format("{}: layer {} is in stage {} by {} and in stage {} by {}: the files are not "
                      "of one save",
                      where_, split->first, *own, stages_[*own].file, stage, stages_[stage].file),
          kFindStages);
    }
    own = stage;
    const NamedView* entry = find_entry(layer, split->second);
    if (entry != nullptr && (told == nullptr || has_size(*entry, *told))) return;
    if (told == nullptr) return;  // a buffer that is not saved
    raise(
        ErrorCode::Corrupt,
        fmt::format("{}: {} has no {} of the shape that {} tells: the file is in another's place, "
                    "or of another save",
                    where_, unishard::quote(file_name(layer)), unishard::quote(split->second),
                    stages_[stage].file),
        kFindStages);
  }

  [[noreturn]] void raise_missing(std::uint32_t layer, const std::string& fqn,
                                  std::size_t stage) const {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: the file of layer {} is missing (layer_{:02}-*model_states.pt): its "
                      "weights and buffers are lost, {} among them, which {} names",
                      where_, layer, layer, unishard::quote(fqn), stages_[stage].file),
          kFindStages);
  }

  void check_order() const {
    std::size_t last = 0;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      if (!own_[i]) continue;
      if (*own_[i] < last) {
        raise(ErrorCode::Corrupt,
              fmt::format("{}: layer {} is in stage {}, but a layer before it is in stage {}: the "
                          "files are not of one save",
                          where_, layers_[i].numbers.layer, *own_[i], last),
              kFindStages);
      }
      last = *own_[i];
    }
  }

  /// A save of another model leaves the files of the layers that only that model has. A frozen
  /// layer looks the same, except where it has a buffer, which its stage names.
  void refuse_unnamed_buffers() const {
    const auto buffers = named_buffers();
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      if (own_[i]) continue;
      for (const NamedView& entry : layers_[i].entries) {
        const auto like = buffers.find(entry.name);
        if (like == buffers.end() || like->second == nullptr) continue;
        if (like->second->dtype == entry.view.dtype && like->second->shape == entry.view.shape)
          raise_left(layers_[i], entry.name);
      }
    }
  }

  /// Returns the buffers that the stages name, by local name. Those of tied modules are named
  /// without a layer, which makes nullptr: any layer may have them.
  std::unordered_map<std::string_view, const TensorView*> named_buffers() const {
    std::unordered_map<std::string_view, const TensorView*> found;
    for (const StageFacts& stage : stages_) {
      for (const std::string_view name : stage.buffers) {
        if (const auto prefix = tied_prefix(name); !prefix.empty()) {
          found[name.substr(prefix.size())] = nullptr;
        } else if (const auto split = split_layer(name)) {
          const NamedView* entry = find_entry(layers_[by_number_.at(split->first)], split->second);
          if (entry != nullptr) found.emplace(split->second, &entry->view);
        }
      }
    }
    return found;
  }

  [[noreturn]] void raise_left(const ModuleFile& layer, const std::string& buffer) const {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: {} is left from another save: it has the buffer {}, and no model file "
                      "names it as {}, although all name their buffers",
                      where_, unishard::quote(file_name(layer)), unishard::quote(buffer),
                      unishard::quote(fmt::format("{}.{}", layer.numbers.layer, buffer))),
          "move the files of the save that is not meant into another folder");
  }

  bool has_groups() const {
    return std::ranges::any_of(
        stages_, [](const StageFacts& stage) { return stage.groups && !stage.groups->empty(); });
  }

  /// Returns the stage of a layer and, of a tied module, the prefix of its names.
  std::pair<std::size_t, std::string> place_of(std::size_t i) const {
    if (own_[i]) return {*own_[i], {}};
    const auto [first, last] = possible_stages(i);
    for (std::size_t stage = first; stage <= last; ++stage) {
      const std::string prefix = tied_module_of(i, stage);
      if (!prefix.empty()) return {stage, prefix};
    }
    return {first, {}};  // frozen
  }

  /// Returns the first and the last stage that layer `i` can be in: those of its neighbours.
  std::pair<std::size_t, std::size_t> possible_stages(std::size_t i) const {
    std::size_t first = 0, last = stages_.size() - 1;
    for (std::size_t k = 0; k < i; ++k) first = own_[k].value_or(first);
    for (std::size_t k = own_.size(); k-- > i;) last = own_[k].value_or(last);
    return {first, std::max(first, last)};
  }

  /// Returns the prefix of the only tied module of a stage whose tensors layer `i` has.
  std::string tied_module_of(std::size_t i, std::size_t stage) const {
    std::string found;
    for (const auto& [prefix, members] : tied_[stage]) {
      if (!has_all(layers_[i], prefix, members)) continue;
      if (!found.empty()) {
        raise(ErrorCode::Unsupported,
              fmt::format("{}: {} can be that of {} and of {}, which have the same shapes", where_,
                          unishard::quote(file_name(layers_[i])), found, prefix));
      }
      found = prefix;
    }
    return found;
  }

  static bool has_all(const ModuleFile& layer, const std::string& prefix,
                      const std::vector<const ToldParameter*>& members) {
    return std::ranges::all_of(members, [&](const ToldParameter* told) {
      const NamedView* entry = find_entry(layer, std::string_view(told->fqn).substr(prefix.size()));
      return entry != nullptr && has_size(*entry, *told);
    });
  }

  std::vector<ModuleFile> layers_;
  const std::vector<StageFacts>& stages_;
  const std::string& where_;
  std::map<std::uint32_t, std::size_t> by_number_;
  std::vector<std::optional<std::size_t>> own_;  ///< stage of each layer, where names tell it
  std::vector<std::string> unnamed_;             ///< files that no name tells
  /// For each stage, the trained parameters of its tied modules by "tied_modules.<key>.".
  std::vector<std::map<std::string, std::vector<const ToldParameter*>>> tied_;
  std::map<std::pair<std::size_t, std::string>, ModuleFile> tied_layers_;  ///< with local names
};

/// Gives the layers to stages by the numbers of their parameters.
class CountingOff {
 public:
  CountingOff(const std::vector<ModuleFile>& layers, const std::vector<StageFacts>& stages)
      : layers_(layers), stages_(stages) {
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      for (const std::string& buffer : stages[stage].buffers) buffers_.emplace(buffer, stage);
    }
  }

  std::optional<std::vector<std::size_t>> count() {
    if (!repeated().empty()) return std::nullopt;
    std::vector<std::size_t> stage_of;
    std::uint64_t parameters = 0, elements = 0;
    for (const ModuleFile& layer : layers_) {
      const auto [more, more_elements] = size_of_layer(layer);
      while (is_full(parameters, elements) && (more > 0 || is_told_later(layer))) {
        if (++stage_ == stages_.size()) return std::nullopt;
        parameters = elements = 0;
      }
      parameters += more;
      elements += more_elements;
      if (exceeds(parameters, elements) || contradicts(layer)) return std::nullopt;
      stage_of.push_back(stage_);
    }
    if (stage_ + 1 != stages_.size() || !is_full(parameters, elements)) return std::nullopt;
    return stage_of;
  }

  std::vector<std::size_t> by_buffers() const {
    std::vector<std::size_t> stage_of;
    stage_of.reserve(layers_.size());
    std::size_t stage = 0;
    for (const ModuleFile& layer : layers_)
      stage_of.push_back(stage = told_stage(layer).value_or(stage));
    return stage_of;
  }

  /// Returns the shapes of each layer's parameters.
  std::vector<std::vector<Shape>> shapes() const {
    std::vector<std::vector<Shape>> shapes;
    for (const ModuleFile& layer : layers_) {
      auto& of_layer = shapes.emplace_back();
      for (const NamedView& entry : layer.entries) {
        if (is_parameter(layer, entry)) of_layer.push_back(entry.view.shape);
      }
    }
    return shapes;
  }

  /// Returns the shapes of the parameters of layers that have one with the name and the beginning
  /// of an earlier layer's, as the second file of a tied module does. Training keeps one of its
  /// parameters equal at least.
  std::vector<Shape> repeated() const {
    Seen seen;
    std::vector<Shape> repeated;
    for (const ModuleFile& layer : layers_) {
      if (!repeats_another(layer, seen)) continue;
      for (const NamedView& entry : layer.entries) {
        if (is_parameter(layer, entry)) repeated.push_back(entry.view.shape);
      }
    }
    return repeated;
  }

 private:
  bool is_full(std::uint64_t parameters, std::uint64_t elements) const {
    const StageFacts& stage = stages_[stage_];
    return stage.elements > 0 ? elements == stage.elements : parameters == stage.parameters;
  }
  bool exceeds(std::uint64_t parameters, std::uint64_t elements) const {
    const StageFacts& stage = stages_[stage_];
    return stage.elements > 0 ? elements > stage.elements : parameters > stage.parameters;
  }

  /// Returns the stage of a layer that has buffers.
  std::optional<std::size_t> told_stage(const ModuleFile& layer) const {
    for (const NamedView& entry : layer.entries) {
      const auto found = buffers_.find(fmt::format("{}.{}", layer.numbers.layer, entry.name));
      if (found != buffers_.end()) return found->second;
    }
    return std::nullopt;
  }
  bool contradicts(const ModuleFile& layer) const {
    return told_stage(layer).value_or(stage_) != stage_;
  }
  bool is_told_later(const ModuleFile& layer) const {
    return told_stage(layer).value_or(stage_) > stage_;
  }

  /// Names, shapes and beginnings of parameters.
  using Seen = std::set<std::tuple<std::string, Shape, std::vector<double>>>;

  /// Adds the parameters of a layer, other than those of one value. Returns whether one was there.
  bool repeats_another(const ModuleFile& layer, Seen& seen) const {
    constexpr std::uint64_t kComparedStart = 64;
    bool repeats = false;
    for (const NamedView& entry : layer.entries) {
      if (!is_parameter(layer, entry) || !entry.view.storage) continue;
      auto values = floats(entry.view, 0, std::min(kComparedStart, entry.view.elements()));
      const bool is_constant =
          std::ranges::adjacent_find(values, std::ranges::not_equal_to()) == values.end();
      if (!is_constant && !seen.emplace(entry.name, entry.view.shape, std::move(values)).second)
        repeats = true;
    }
    return repeats;
  }

  bool is_parameter(const ModuleFile& layer, const NamedView& entry) const {
    return info(entry.view.dtype).kind == unishard::Kind::Float &&
           !buffers_.contains(fmt::format("{}.{}", layer.numbers.layer, entry.name));
  }

  /// Returns the numbers of parameters and of their elements.
  std::pair<std::uint64_t, std::uint64_t> size_of_layer(const ModuleFile& layer) const {
    std::uint64_t parameters = 0, elements = 0;
    for (const NamedView& entry : layer.entries) {
      if (!is_parameter(layer, entry)) continue;
      ++parameters;
      elements += entry.view.elements();  // cannot overflow: each has bytes in a file
    }
    return {parameters, elements};
  }

  const std::vector<ModuleFile>& layers_;
  const std::vector<StageFacts>& stages_;
  std::unordered_map<std::string, std::size_t> buffers_;  ///< stage by whole name
  std::size_t stage_ = 0;
};

}  // namespace

std::vector<std::vector<ModuleFile>> assign_layers(std::vector<ModuleFile> layers,
                                                   const std::vector<StageFacts>& stages,
                                                   const std::string& where, Notes& notes) {
  return LayerAssignment(std::move(layers), stages, where).assign(notes);
}

void check_told_layers(const std::vector<ModuleFile>& layers, const std::vector<StageFacts>& stages,
                       const std::string& where) {
  LayerAssignment(layers, stages, where).check();
}

std::vector<std::vector<Shape>> parameter_shapes(const std::vector<ModuleFile>& layers,
                                                 const std::vector<StageFacts>& stages) {
  return CountingOff(layers, stages).shapes();
}

std::vector<Shape> repeated_parameters(const std::vector<ModuleFile>& layers,
                                       const std::vector<StageFacts>& stages) {
  return CountingOff(layers, stages).repeated();
}

std::optional<std::vector<std::size_t>> count_off_layers(const std::vector<ModuleFile>& layers,
                                                         const std::vector<StageFacts>& stages) {
  return CountingOff(layers, stages).count();
}

std::vector<std::size_t> stages_by_buffers(const std::vector<ModuleFile>& layers,
                                           const std::vector<StageFacts>& stages) {
  return CountingOff(layers, stages).by_buffers();
}

std::vector<std::vector<ModuleFile>> place_layers(std::vector<ModuleFile> layers,
                                                  const std::vector<std::size_t>& stage_of,
                                                  std::size_t stages) {
  std::vector<std::vector<ModuleFile>> out(stages);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (NamedView& entry : layers[i].entries)
      entry.name = fmt::format("{}.{}", layers[i].numbers.layer, entry.name);
    out[stage_of.at(i)].push_back(std::move(layers[i]));
  }
  return out;
}

std::vector<std::string> tied_modules_without_layer(
    const std::vector<StageFacts>& stages, const std::vector<std::vector<ModuleFile>>& layers) {
  std::set<std::string_view> missing;
  for (const StageFacts& stage : stages) {
    if (!stage.groups) continue;
    for (const auto& group : *stage.groups) {
      for (const ToldParameter& told : group) missing.insert(tied_prefix(told.fqn));
    }
  }
  missing.erase(std::string_view());
  for (const auto& of_stage : layers) {
    for (const ModuleFile& layer : of_stage) {
      for (const NamedView& entry : layer.entries) missing.erase(tied_prefix(entry.name));
    }
  }
  std::vector<std::string> names;
  names.reserve(missing.size());
  for (const std::string_view prefix : missing)
    names.emplace_back(prefix.substr(0, prefix.size() - 1));
  return names;
}

ShapeGroups shapes_of_stage(const StageFacts& stage,
                            const std::vector<std::vector<ModuleFile>>& layers) {
  std::unordered_multimap<std::string_view, const NamedView*> entries;
  for (const auto& of_stage : layers) {
    for (const ModuleFile& layer : of_stage) {
      for (const NamedView& entry : layer.entries) entries.emplace(entry.name, &entry);
    }
  }
  const auto shape_of = [&](const ToldParameter& told) {
    if (told.shape) return *told.shape;
    const auto [first, last] = entries.equal_range(told.fqn);
    const auto found =
        std::find_if(first, last, [&](const auto& entry) { return has_size(*entry.second, told); });
    if (found == last) {
      raise(ErrorCode::Unsupported,
            fmt::format("{}: no layer has {}, and nothing else tells its shape", stage.file,
                        unishard::quote(told.fqn)));
    }
    return found->second->view.shape;
  };
  ShapeGroups shapes;
  for (const auto& group : *stage.groups) {
    auto& out = shapes.emplace_back();
    for (const ToldParameter& told : group) out.push_back({told.fqn, shape_of(told)});
  }
  return shapes;
}

}  // namespace unishard::converters::deepspeed
