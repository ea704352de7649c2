#include "formats/named_cuts.hpp"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

namespace unishard::converters {
namespace {

constexpr std::string_view kLayers = "layers.";

std::string escaped_dots(std::string_view name) {
  std::string pattern;
  for (const char c : name) {
    if (c == '.') pattern += '\\';
    pattern += c;
  }
  return pattern;
}

/// A regular expression for the name, in every layer.
std::string pattern_of(std::string_view name) {
  const auto found = parse_layer_name(name);
  if (!found) return "^" + escaped_dots(name) + "$";
  return "^" + escaped_dots(found->before) + "\\d+\\." + escaped_dots(found->local) + "$";
}

}  // namespace

std::optional<LayerName> parse_layer_name(std::string_view name) {
  constexpr std::uint64_t kMostLayers = 1 << 20;
  const std::size_t at = name.find(kLayers);
  if (at == name.npos || (at > 0 && name[at - 1] != '.')) return std::nullopt;
  LayerName found;
  found.before = name.substr(0, at + kLayers.size());
  const std::string_view rest = name.substr(found.before.size());
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), found.layer);
  const auto digits = static_cast<std::size_t>(end - rest.data());
  if (error != std::errc() || digits == rest.size() || rest[digits] != '.' ||
      found.layer >= kMostLayers || (digits > 1 && rest.front() == '0'))
    return std::nullopt;
  found.local = rest.substr(digits + 1);
  return found;
}

Json cut_patterns(const std::map<std::string, NamedCut>& tensors,
                  std::optional<std::uint64_t> vocabulary) {
  std::map<NamedCut, std::set<std::string>> patterns;
  for (const auto& [name, cut] : tensors) patterns[cut].insert(pattern_of(name));
  Json rules = {{"tp_replicated_parameter_patterns", patterns[NamedCut::Whole]},
                {"parameter_with_row_parallelism_patterns", patterns[NamedCut::Columns]},
                {"parameter_with_2_sub_params_cat_dim_0", patterns[NamedCut::TwoHalves]}};
  if (!vocabulary) return rules;
  rules["vocabulary_parameter_patterns"] = patterns[NamedCut::Vocabulary];
  rules["original_vocab_size"] = *vocabulary;
  return rules;
}

}  // namespace unishard::converters
