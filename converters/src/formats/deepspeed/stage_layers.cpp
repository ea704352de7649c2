#include "formats/deepspeed/stage_layers.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>

namespace unishard::converters::deepspeed_sink {
namespace {

/// Upper bounds. Real pipelines have a few hundred layers.
constexpr std::uint32_t kLayers = 1u << 14;
constexpr std::uint64_t kDivisionSteps = 1u << 31;

constexpr std::string_view kTied = "tied_modules.";

[[noreturn]] void refuse(const std::string& problem, const std::string& hint) {
  raise(ErrorCode::InvalidArgument, problem, hint + "; nothing was written");
}

}  // namespace

std::optional<LayerName> split_layer_name(std::string_view fqn) {
  LayerName name;
  const bool is_tied = fqn.starts_with(kTied);
  if (is_tied) fqn.remove_prefix(kTied.size());
  const std::size_t dot = fqn.find('.');
  if (dot == std::string_view::npos || dot == 0 || dot + 1 == fqn.size()) return std::nullopt;
  const std::string_view head = fqn.substr(0, dot);
  name.local = fqn.substr(dot + 1);
  if (is_tied) {
    name.tied_key = head;
    return name;
  }
  const auto [end, error] = std::from_chars(head.data(), head.data() + head.size(), name.layer);
  const bool is_number = error == std::errc() && end == head.data() + head.size();
  if (!is_number || name.layer >= kLayers || (head.size() > 1 && head.front() == '0'))
    return std::nullopt;
  return name;
}

std::vector<std::uint32_t> balanced_parts(const std::vector<std::uint64_t>& elements,
                                          std::uint32_t parts) {
  const std::size_t count = elements.size(), width = parts + std::size_t{1};
  /// A division of the layers before one into some parts: its largest and its smallest part, and
  /// where its last part begins.
  struct Division {
    double largest = std::numeric_limits<double>::infinity();
    double smallest = std::numeric_limits<double>::infinity();
    double difference = std::numeric_limits<double>::infinity();
    std::uint32_t begin = 0;
  };
  std::vector<double> before(count + 1);
  for (std::size_t i = 0; i < count; ++i)
    before[i + 1] = before[i] + static_cast<double>(elements[i]);
  std::vector<Division> best((count + 1) * width);
  best[0].largest = best[0].difference = 0;
  for (std::size_t end = 1; end <= count; ++end) {
    for (std::size_t n = 1; n <= std::min<std::size_t>(end, parts); ++n) {
      Division& division = best[end * width + n];
      for (std::size_t begin = 0; begin < end; ++begin) {
        const Division& rest = best[begin * width + n - 1];
        const double own = before[end] - before[begin];
        const double largest = std::max(rest.largest, own);
        const double smallest = std::min(rest.smallest, own);
        if (division.difference < largest - smallest) continue;
        division = {largest, smallest, largest - smallest, static_cast<std::uint32_t>(begin)};
      }
    }
  }
  std::vector<std::uint32_t> out(width);
  out[parts] = static_cast<std::uint32_t>(count);
  for (std::size_t n = parts; n > 0; --n) out[n - 1] = best[out[n] * width + n].begin;
  return out;
}

StageLayers::StageLayers(const SinkModel& model, const ParallelRanks& ranks,
                         const ElementsOnRank& elements) {
  read_names(model);
  read_tied(ranks);
  parts_ = ranks.parts;
  are_given_ = !parts_.empty();
  if (!are_given_) {
    parts_ = divided(model, ranks.stages.value_or(1), elements);
  } else if (ranks.stages && *ranks.stages + std::size_t{1} != parts_.size()) {
    refuse(fmt::format("--pipeline {} and {} numbers in --pipeline-parts", *ranks.stages,
                       parts_.size()),
           "--pipeline-parts has the first layer of each stage, then the number of layers");
  }
  check_parts();
}

std::vector<std::uint32_t> StageLayers::divided(const SinkModel& model, std::uint32_t stages,
                                                const ElementsOnRank& elements) const {
  if (stages > layers_ || std::uint64_t{layers_} * layers_ * stages > kDivisionSteps) {
    refuse(fmt::format("{} stages for the layers 0 to {}", stages, layers_ - 1),
           "pass the first layer of each stage, and the number of layers, as --pipeline-parts");
  }
  if (stages > 1 && model.has_frozen()) {
    refuse(
        "the model has frozen parameters, which DeepSpeed counts when it divides the layers, "
        "unless a layer froze them when it was made",
        "pass the first layer of each stage, and the number of layers, as --pipeline-parts");
  }
  std::vector<std::uint64_t> of_layer(layers_);
  for (const SinkParameter& parameter : model.parameters) {
    const LayerName name = *split_layer_name(parameter.fqn);
    if (name.tied_key.empty()) {
      of_layer[name.layer] += elements(parameter);
    } else {
      for (const std::uint32_t layer : tied_.find(name.tied_key)->second)
        of_layer[layer] += elements(parameter);
    }
  }
  return balanced_parts(of_layer, stages);
}

void StageLayers::read_names(const SinkModel& model) {
  const auto read = [&](const std::string& fqn) {
    const auto name = split_layer_name(fqn);
    if (!name) {
      raise(ErrorCode::Unsupported,
            fmt::format("{}: it is no tensor of a pipeline, which are called <layer>.<name> and "
                        "tied_modules.<key>.<name>",
                        unishard::quote(fqn)),
            "leave --pipeline out, or give the tensors the names of DeepSpeed's PipelineModule: "
            "--rename");
    }
    if (name->tied_key.empty()) {
      own_.insert(name->layer);
      layers_ = std::max(layers_, name->layer + 1);
    } else {
      tied_.try_emplace(std::string(name->tied_key));
    }
  };
  for (const ModuleEntry& entry : model.module) read(entry.fqn);
  for (const auto& [alias, entry] : model.aliases) read(alias);
}

void StageLayers::read_tied(const ParallelRanks& ranks) {
  for (const auto& [key, layers] : ranks.tied) {
    const auto found = tied_.find(key);
    if (found == tied_.end())
      refuse(fmt::format("--tied-layers {}: the checkpoint has no tied module of this key", key),
             "leave it out");
    for (const std::uint32_t layer : layers) {
      if (layer >= kLayers)
        refuse(fmt::format("--tied-layers {}={}: a pipeline has at most {} layers", key, layer,
                           kLayers),
               "count the layers from 0");
      if (tied_key(layer))
        refuse(fmt::format("--tied-layers {}={}", key, layer), "name each layer once");
      if (own_.contains(layer))
        refuse(
            fmt::format("--tied-layers {}={}: layer {} has tensors of its own", key, layer, layer),
            "name the layers whose module is the tied one");
      found->second.push_back(layer);
      layers_ = std::max(layers_, layer + 1);
    }
  }
  for (const auto& [key, layers] : tied_) {
    if (!layers.empty()) continue;
    refuse(fmt::format("the layers that use the tied module {} are not known, because no "
                       "checkpoint tells them",
                       unishard::quote(key)),
           fmt::format("pass their numbers, such as --tied-layers {}=0,{}", key, layers_));
  }
}

void StageLayers::check_parts() const {
  const bool ascends = std::ranges::is_sorted(parts_);
  if (parts_.size() < 2 || parts_.front() != 0 || !ascends || parts_.back() > kLayers) {
    refuse(fmt::format("--pipeline-parts {} are no first layers of stages", fmt::join(parts_, ",")),
           "pass 0, the first layer of each other stage, then the number of layers: 0,4,8");
  }
  if (parts_.back() < layers_) {
    refuse(fmt::format("--pipeline-parts tell of {} layers, and the checkpoint has layer {}",
                       parts_.back(), layers_ - 1),
           "the last number is that of all layers");
  }
}

std::optional<std::string_view> StageLayers::tied_key(std::uint32_t layer) const {
  for (const auto& [key, layers] : tied_) {
    if (std::ranges::count(layers, layer) > 0) return key;
  }
  return std::nullopt;
}

bool StageLayers::has(std::uint32_t stage, std::string_view fqn) const {
  const auto is_in = [&](std::uint32_t layer) {
    return first(stage) <= layer && layer < last(stage);
  };
  const LayerName name = *split_layer_name(fqn);
  if (name.tied_key.empty()) return is_in(name.layer);
  return std::ranges::any_of(tied_.find(name.tied_key)->second, is_in);
}

std::uint32_t StageLayers::place(std::uint32_t stage, std::string_view fqn) const {
  const std::optional<LayerName> name = split_layer_name(fqn);
  if (!name) return 0;
  if (name->tied_key.empty()) return kLayers + name->layer;
  std::uint32_t place = kLayers;
  for (const std::uint32_t layer : tied_.find(name->tied_key)->second)
    if (first(stage) <= layer && layer < last(stage)) place = std::min(place, layer);
  return place;
}

std::string StageLayers::remark() const {
  std::string text;
  for (std::uint32_t stage = 0; stage < stages(); ++stage) {
    if (stage > 0) text += ", ";
    text += first(stage) == last(stage)
                ? fmt::format("stage {} none", stage)
                : fmt::format("stage {} the layers {} to {}", stage, first(stage), last(stage) - 1);
  }
  return fmt::format("the run must divide its layers in the same way: {}{}", text,
                     are_given_ ? ""
                                : ", as DeepSpeed's partition_method \"parameters\" does where "
                                  "these are all layers (else: --pipeline-parts)");
}

}  // namespace unishard::converters::deepspeed_sink
