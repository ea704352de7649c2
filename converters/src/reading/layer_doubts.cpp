#include "reading/layer_doubts.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/text.hpp"

#include "core/model_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <map>
#include <optional>
#include <string_view>

namespace unishard::converters {
namespace {

/// The tensors of one layer, by what follows its number. Second names, and what is not in floating
/// point, such as the description of a quantized weight, have no shape.
using Layer = std::map<std::string, Shape>;
/// The layers below one prefix, by number.
using Stack = std::map<std::uint64_t, Layer>;
using Stacks = std::map<std::string, Stack>;

/// Adds a tensor by the first number in its name: "h.3.mlp.0.weight" is of layer 3 of "h".
void add_tensor(std::string_view name, const Shape& shape, Stacks& stacks) {
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    std::uint64_t number = 0;
    const auto [rest, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    if (error == std::errc() && rest == part.data() + part.size() && begin > 0) {
      stacks[std::string(name.substr(0, begin - 1))][number].emplace(name.substr(end), shape);
      return;
    }
    begin = end + 1;
  }
}

Stacks stacks_of(const Catalog& catalog) {
  Stacks stacks;
  for (const TensorInfo& tensor : catalog.tensors) {
    const bool is_float = info(tensor.dtype).kind == Kind::Float;
    if (is_of_model(tensor)) add_tensor(tensor.fqn, is_float ? tensor.shape : Shape(), stacks);
  }
  for (const Alias& alias : catalog.aliases) add_tensor(alias.fqn, {}, stacks);
  return stacks;
}

std::optional<std::uint64_t> number_at(const SortedJson& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end() || !found->is_number_unsigned()) return std::nullopt;
  return found->get<std::uint64_t>();
}

bool holds(const SortedJson& config, const char* key, const SortedJson& value) {
  const auto found = config.find(key);
  return found != config.end() && *found == value;
}

/// Returns the numbers of layers of one model: of its encoder and its decoder, or of the only
/// stack.
std::vector<std::uint64_t> wanted_of(const SortedJson& config) {
  constexpr std::array<const char*, 4> kKeys = {"num_hidden_layers", "n_layer", "num_layers",
                                                "n_layers"};
  constexpr std::array<std::pair<const char*, const char*>, 2> kBoth = {
      {{"encoder_layers", "decoder_layers"}, {"num_layers", "num_decoder_layers"}}};
  // ALBERT's layers share weights, and EfficientNet counts parts of blocks.
  if (config.contains("num_hidden_groups") || config.contains("num_block_repeats")) return {};
  for (const auto& [encoder, decoder] : kBoth) {
    const auto first = number_at(config, encoder), second = number_at(config, decoder);
    if (!first || !second) continue;
    // A decoder alone has the configuration of both.
    if (!holds(config, "is_encoder_decoder", true)) return {};
    return {*first, *second};
  }
  // hrm_text has two stacks, and counts the layers of all rounds through them.
  if (const auto number = number_at(config, "num_layers_per_stack")) return {*number, *number};
  for (const char* key : kKeys) {
    if (const auto number = number_at(config, key)) return {*number};
  }
  return {};
}

/// Whether the class may be one part alone of what config.json describes: an encoder, or the
/// images' part of a CLIP.
bool is_of_one_part(const SortedJson& config) {
  constexpr std::array<const char*, 6> kWords = {"Encoder",     "ForImageClassification",
                                                 "VisionModel", "ForAudioClassification",
                                                 "TextModel",   "ForTokenClassification"};
  const auto found = config.find("architectures");
  const std::string classes = found == config.end() ? std::string() : found->dump();
  return std::ranges::any_of(
      kWords, [&](const char* word) { return classes.find(word) != std::string::npos; });
}

/// Returns the numbers of layers that config.json has, also for the parts of a model of several
/// kinds, largest first; none where the model may have one of these parts only.
std::vector<std::uint64_t> wanted_layers(const SortedJson& config) {
  std::vector<std::uint64_t> wanted = wanted_of(config);
  for (const char* part : {"text_config", "vision_config", "audio_config"}) {
    const auto found = config.find(part);
    if (found == config.end() || !found->is_object()) continue;
    const std::vector<std::uint64_t> more = wanted_of(*found);
    wanted.insert(wanted.end(), more.begin(), more.end());
  }
  if (wanted.size() > 1 && is_of_one_part(config)) return {};
  std::ranges::sort(wanted, std::greater{});
  return wanted;
}

/// Whether the tensors of the layers are in modules of their own, as those of a block are. The
/// others may be a sequence, in which the modules without tensors have numbers too.
bool has_blocks(const Stack& stack) {
  return std::ranges::all_of(stack, [](const auto& layer) {
    return std::ranges::any_of(layer.second, [](const auto& tensor) {
      return tensor.first.find('.', 1) != std::string::npos;
    });
  });
}

void doubt_counts(const Stacks& stacks, const std::vector<std::uint64_t>& wanted,
                  std::uint64_t others, std::vector<std::string>& lines) {
  std::vector<std::pair<std::uint64_t, std::string>> found;
  for (const auto& [prefix, stack] : stacks) found.emplace_back(stack.size(), prefix);
  std::ranges::sort(found, std::greater{});
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::uint64_t count = i < found.size() ? found[i].first : 0;
    if (count >= wanted[i]) continue;
    const std::string where = i < found.size() ? fmt::format(" ({})", quote(found[i].second)) : "";
    lines.push_back(fmt::format(
        "config.json says {} layers, and there are tensors of {}{}: a file may be missing",
        wanted[i], count, where));
    return;
  }
  if (wanted.empty()) return;
  const bool is_there =
      std::ranges::any_of(found, [&](const auto& each) { return each.first == wanted.front(); });
  std::erase_if(found, [&](const auto& each) { return !has_blocks(stacks.at(each.second)); });
  if (wanted.size() == 1 && !is_there && !found.empty() && found[0].first > wanted[0] + others)
    lines.push_back(fmt::format(
        "config.json says {} layers, and there are tensors of {} ({}): it may be that of another "
        "model",
        wanted[0], found[0].first, quote(found[0].second)));
}

/// The numbers go on without a gap from `next`.
void doubt_numbers(const std::string& prefix, const Stack& stack, std::uint64_t next,
                   std::vector<std::string>& lines) {
  for (const auto& [number, layer] : stack) {
    if (number != next) {
      lines.push_back(fmt::format("there is no layer {}.{}, and there is one with the number {}",
                                  prefix, next, number));
      return;
    }
    ++next;
  }
}

/// What most layers of a stack have: the tensors in modules, with the shape that most have.
struct Usual {
  std::map<std::string, std::map<Shape, std::size_t>> shapes;

  explicit Usual(const Stack& stack) {
    for (const auto& [number, layer] : stack) {
      for (const auto& [name, shape] : layer) {
        if (name.find('.', 1) != std::string::npos) ++shapes[name][shape];
      }
    }
    std::erase_if(shapes, [&](const auto& each) {
      std::size_t count = 0;
      for (const auto& [shape, layers] : each.second) count += layers;
      return 2 * count <= stack.size();
    });
  }
  /// A layer of another kind has tensors of its own.
  bool has_all_of(const Layer& layer) const {
    return std::ranges::all_of(layer,
                               [&](const auto& tensor) { return shapes.contains(tensor.first); });
  }
};

/// Some models have no norm in their first or last layer.
void doubt_missing(const std::string& prefix, const Stack& stack, const Usual& usual,
                   std::vector<std::string>& missing) {
  for (const auto& [number, layer] : stack) {
    const bool is_at_end = number == stack.begin()->first || number == stack.rbegin()->first;
    if (!usual.has_all_of(layer)) continue;
    for (const auto& [name, shapes] : usual.shapes) {
      if (is_at_end && name.find("norm") != std::string::npos) continue;
      if (!layer.contains(name)) missing.push_back(fmt::format("{}.{}{}", prefix, number, name));
    }
  }
}

/// Whether config.json describes each layer on its own: a list of as many values, not all equal.
bool describes_each_layer(const SortedJson& config, std::size_t layers) {
  return std::ranges::any_of(config, [&](const SortedJson& member) {
    if (member.is_object()) return describes_each_layer(member, layers);
    return member.is_array() && member.size() == layers &&
           std::ranges::any_of(member, [&](const SortedJson& each) { return each != member[0]; });
  });
}

/// Whether the first and the last layer of a stack are like the others: those of a language model
/// are. The first one of models of images and sound may have another width.
bool has_equal_ends(const SortedJson& config, const Stack& stack) {
  constexpr std::size_t kLeast = 4;
  const auto classes = config.find("architectures");
  return classes != config.end() && classes->dump().find("ForCausalLM") != std::string::npos &&
         stack.size() >= kLeast && !describes_each_layer(config, stack.size());
}

/// Whether a tensor that all layers have is a matrix of the attention or of the MLP, by its name.
bool is_projection(std::string_view name, const Shape& shape) {
  constexpr std::array<std::string_view, 4> kModules = {"attn", "attention", "mlp", "feed_forward"};
  return shape.size() == 2 && name.ends_with(".weight") &&
         std::ranges::any_of(kModules, [&](std::string_view module) {
           return name.find(module) != std::string_view::npos;
         });
}

/// Where one layer alone has another shape. Models whose layers differ have more of them, or list
/// their types. The first and the last layer count where `has_equal_ends`, and there matrices only.
void doubt_shapes(const std::string& prefix, const Stack& stack, const Usual& usual,
                  bool has_equal_ends, std::vector<std::string>& odd) {
  for (const auto& [name, shapes] : usual.shapes) {
    if (shapes.size() != 2) continue;
    const auto [fewest, most] =
        std::ranges::minmax_element(shapes, {}, [](const auto& each) { return each.second; });
    if (fewest->second != 1 || most->second < 2 || fewest->first.empty()) continue;
    const bool counts_at_end =
        has_equal_ends && most->second + 1 == stack.size() && is_projection(name, fewest->first);
    for (const auto& [number, layer] : stack) {
      const auto found = layer.find(name);
      const bool is_at_end = number == stack.begin()->first || number == stack.rbegin()->first;
      if ((!is_at_end || counts_at_end) && found != layer.end() && found->second == fewest->first)
        odd.push_back(fmt::format("{}.{}{}", prefix, number, name));
    }
  }
}

void add_line(std::string_view what, const std::vector<std::string>& names,
              std::vector<std::string>& lines) {
  if (!names.empty()) lines.push_back(fmt::format("{}: {}", what, first_names(names)));
}

}  // namespace

std::vector<std::string> doubts_about_layers(const SortedJson& config, const Catalog& catalog) {
  std::vector<std::string> lines, missing, odd;
  const Stacks stacks = stacks_of(catalog);
  const std::vector<std::uint64_t> wanted = wanted_layers(config);
  // Layers that predict later tokens have the numbers behind the model's.
  const std::uint64_t others = number_at(config, "num_nextn_predict_layers").value_or(0) +
                               number_at(config, "mtp_num_hidden_layers").value_or(0);
  const bool has_types = config.dump().find("\"layer_types\"") != std::string::npos;
  doubt_counts(stacks, wanted, others, lines);
  for (const auto& [prefix, stack] : stacks) {
    if (!has_blocks(stack)) continue;
    const bool is_counted = std::ranges::count(wanted, stack.size()) > 0;
    if (is_counted || std::ranges::count(wanted, stack.rbegin()->first + 1) > 0)
      doubt_numbers(prefix, stack, 0, lines);
    if (!is_counted) continue;
    const Usual usual(stack);
    doubt_missing(prefix, stack, usual, missing);
    if (!has_types) doubt_shapes(prefix, stack, usual, has_equal_ends(config, stack), odd);
  }
  add_line("layers lack tensors that most layers have", missing, lines);
  add_line("one layer has another shape than all others", odd, lines);
  return lines;
}

std::vector<std::string> doubts_about_adapted_layers(const Catalog& catalog) {
  constexpr std::size_t kLeast = 3;
  std::vector<std::string> lines, missing;
  for (const auto& [prefix, stack] : stacks_of(catalog)) {
    if (!has_blocks(stack) || stack.size() < kLeast) continue;
    doubt_numbers(prefix, stack, stack.begin()->first, lines);
    doubt_missing(prefix, stack, Usual(stack), missing);
  }
  add_line("layers lack matrices of the adapter that most layers have", missing, lines);
  return lines;
}

}  // namespace unishard::converters
