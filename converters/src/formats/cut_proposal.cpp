#include "unishard/converters/cut_proposal.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/text.hpp"

#include "core/watched_storage.hpp"
#include "formats/cut_parts.hpp"
#include "formats/deepspeed/reader.hpp"
#include "formats/rank_comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace unishard::converters {
namespace {

enum class Cut : std::uint8_t { Whole, Rows, Columns, TwoHalves, Mean, Other };

/// Key of the list that says so, and words.
struct CutText {
  const char* list;
  std::string_view words;
};
constexpr std::array<CutText, 6> kTexts = {
    {{"tp_replicated_parameter_patterns", "whole on every rank"},
     {nullptr, "along dimension 0"},
     {"parameter_with_row_parallelism_patterns", "along dimension 1"},
     {"parameter_with_2_sub_params_cat_dim_0", "two tensors, each along dimension 0"},
     {"parameter_to_average_patterns", "the mean of the ranks"},
     {nullptr, "along another dimension than 0 and 1, for which there is no list"}}};
const CutText& words_of(Cut cut) { return kTexts[static_cast<std::size_t>(cut)]; }

struct Decision {
  Cut cut = Cut::Rows;
  std::string reason;
  bool is_doubtful = false;
  bool is_open = false;  ///< the values tell nothing: another layer's may
};

bool is_digits(std::string_view part) {
  return !part.empty() && part.find_first_not_of("0123456789") == part.npos;
}

/// A regular expression for the name, with any number in the place of `any_number`.
std::string name_pattern_of(std::string_view name, bool any_number) {
  std::string pattern = "^";
  while (true) {
    const std::size_t dot = name.find('.');
    const std::string_view part = name.substr(0, dot);
    if (any_number && is_digits(part)) {
      pattern += "\\d+";
    } else {
      for (const char c : part) {
        if (std::string_view(R"(\^$|?*+()[]{})").find(c) != std::string_view::npos) pattern += '\\';
        pattern += c;
      }
    }
    if (dot == name.npos) break;
    pattern += "\\.";
    name.remove_prefix(dot + 1);
  }
  return pattern + "$";
}

bool has_any(std::string_view name, std::initializer_list<std::string_view> words) {
  return std::ranges::any_of(words, [&](auto word) { return name.find(word) != name.npos; });
}

class CutGuess {
 public:
  explicit CutGuess(std::map<std::string, ComparedTensor> tensors)
      : tensors_(std::move(tensors)), hidden_(hidden_size()) {}

  CutProposal guess() {
    for (const auto& [name, tensor] : tensors_) decisions_.emplace(name, decide(name, tensor));
    follow_biases();
    follow_other_layers();
    find_halves();
    doubt_fused();
    CutProposal proposal;
    for (const auto& [pattern, names] : groups()) add(pattern, names, proposal);
    return proposal;
  }

 private:
  using Groups = std::map<std::string, std::vector<std::string>>;  // names by pattern

  /// The size that most vectors have which all ranks have alike: that of the model's norms.
  std::uint64_t hidden_size() const {
    for (const bool counts_constants : {false, true}) {
      std::map<std::uint64_t, std::size_t> counts;
      for (const auto& [name, tensor] : tensors_) {
        const bool is_vector = tensor.shards[0].size() == 1 && tensor.shards[0][0] > 1;
        if (is_vector && tensor.is_equal && (counts_constants || !tensor.has_one_value))
          ++counts[tensor.shards[0][0]];
      }
      const auto most =
          std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; });
      if (most != counts.end()) return most->first;
    }
    return 0;
  }

  Decision decide(const std::string& name, const ComparedTensor& tensor) const {
    if (std::ranges::any_of(tensor.shards, [&](const Shape& s) { return s != tensor.shards[0]; }))
      return by_shapes(tensor);
    if (tensor.is_equal && (!tensor.has_one_value || tensor.shards[0].empty()))
      return {Cut::Whole, "all ranks have the same values"};
    if (tensor.shards[0].size() < 2) return decide_vector(tensor);
    Decision decision = by_sizes(name, tensor.shards[0]);
    decision.is_open = tensor.is_equal;
    decision.is_doubtful = decision.is_doubtful || tensor.is_equal;
    return decision;
  }

  static Decision by_shapes(const ComparedTensor& tensor) {
    std::set<std::size_t> dimensions;
    for (const Shape& shape : tensor.shards) {
      if (shape.size() != tensor.shards[0].size())
        return {Cut::Other, "the ranks' tensors have different numbers of dimensions", true};
      for (std::size_t d = 0; d < shape.size(); ++d) {
        if (shape[d] != tensor.shards[0][d]) dimensions.insert(d);
      }
    }
    const bool is_listed = dimensions.size() == 1 && *dimensions.begin() < 2;
    const Cut cut = !is_listed ? Cut::Other : *dimensions.begin() == 0 ? Cut::Rows : Cut::Columns;
    return {cut, "the ranks' tensors have different sizes there", !is_listed};
  }

  Decision decide_vector(const ComparedTensor& tensor) const {
    const std::uint64_t size = tensor.shards[0].empty() ? 1 : tensor.shards[0][0];
    if (tensor.is_equal) {
      const bool is_whole = size == hidden_ || size == 1;
      return {is_whole ? Cut::Whole : Cut::Rows,
              "all elements of all ranks are the same number, so only its size tells", true, true};
    }
    if (size != hidden_ && size != 1) return {Cut::Rows, "the ranks have different values"};
    return {Cut::Mean,
            "it has the size of tensors that all ranks have whole, and the ranks have different "
            "values: copies that went apart, or parts",
            true};
  }

  /// One dimension of a whole matrix is that of the model's norms.
  Decision by_sizes(const std::string& name, const Shape& shard) const {
    const std::uint64_t ranks = tensors_.at(name).shards.size();
    const auto fits = [&](std::uint64_t rows, std::uint64_t columns) {
      return (rows == hidden_ ? 1 : 0) + (columns == hidden_ ? 1 : 0);
    };
    const int rows = hidden_ == 0 ? 0 : fits(shard[0] * ranks, shard[1]);
    const int columns = hidden_ == 0 ? 0 : fits(shard[0], shard[1] * ranks);
    const bool is_table = has_any(name, {"embed", "lm_head", "output_layer"});
    if (rows != columns) {
      Decision decision{rows > columns ? Cut::Rows : Cut::Columns,
                        fmt::format("so it fits the {} elements of the model's vectors", hidden_)};
      if (is_table && decision.cut == Cut::Rows) doubt_padding(decision);
      return decision;
    }
    if (is_table) {
      Decision decision{Cut::Rows, "its name is that of a table of the vocabulary", true};
      doubt_padding(decision);
      return decision;
    }
    const bool is_columns =
        has_any(name, {"o_proj", "down_proj", "out_proj", "dense_4h_to_h", "fc2", ".wo.", ".w2."});
    return {is_columns ? Cut::Columns : Cut::Rows, "sizes fit both dimensions, so its name tells",
            true};
  }

  static void doubt_padding(Decision& decision) {
    decision.is_doubtful = true;
    decision.reason +=
        "; where it ends with rows of padding, it belongs to vocabulary_parameter_patterns, with "
        "original_vocab_size";
  }

  /// A bias is whole where its weight is cut along dimension 1, and cut where it has the rows of
  /// one that is cut along dimension 0.
  void follow_biases() {
    constexpr std::string_view kWeight = ".weight", kBias = ".bias";
    for (auto& [name, weight] : decisions_) {
      if (!name.ends_with(kWeight)) continue;
      const auto bias =
          decisions_.find(name.substr(0, name.size() - kWeight.size()) + std::string(kBias));
      const Shape& shape = tensors_.at(name).shards[0];
      if (bias == decisions_.end() || shape.size() != 2) continue;
      const ComparedTensor& values = tensors_.at(bias->first);
      const bool has_rows = values.shards[0] == Shape{shape[0]};
      if (!has_rows) continue;
      if (!bias->second.is_open && weight.is_doubtful && bias->second.cut != Cut::Mean) {
        const bool is_whole = bias->second.cut == Cut::Whole;
        weight = {is_whole ? Cut::Columns : Cut::Rows,
                  is_whole ? "all ranks have its bias whole" : "its bias is cut"};
      } else if (bias->second.is_open && !weight.is_doubtful) {
        bias->second = {weight.cut == Cut::Columns ? Cut::Whole : Cut::Rows,
                        "as its weight is cut"};
      }
    }
  }

  Groups groups_of_layers() const {
    Groups groups;
    for (const auto& [name, decision] : decisions_)
      groups[name_pattern_of(name, true)].push_back(name);
    return groups;
  }

  /// Where values tell nothing in one layer, they may in another.
  void follow_other_layers() {
    for (const auto& [pattern, names] : groups_of_layers()) {
      const auto told = std::ranges::find_if(
          names, [&](const std::string& name) { return !decisions_.at(name).is_open; });
      if (told == names.end()) continue;
      const Decision other = decisions_.at(*told);
      for (const std::string& name : names) {
        if (decisions_.at(name).is_open) decisions_.at(name) = other;
      }
    }
  }

  /// What stands before the local name of a layer's tensor.
  static std::string_view layer_of(std::string_view name) {
    std::size_t at = 0;
    for (std::size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', at)) {
      if (is_digits(name.substr(at, dot - at))) return name.substr(0, dot);
      at = dot + 1;
    }
    return {};
  }

  /// A gate and what it opens are often one tensor, with twice the rows that the next one has
  /// columns.
  void find_halves() {
    std::set<std::pair<std::string_view, std::uint64_t>> columns;  // layer, columns of a rank
    for (const auto& [name, decision] : decisions_) {
      const Shape& shape = tensors_.at(name).shards[0];
      if (decision.cut == Cut::Columns && shape.size() == 2)
        columns.emplace(layer_of(name), shape[1]);
    }
    for (auto& [name, decision] : decisions_) {
      const Shape& shape = tensors_.at(name).shards[0];
      const bool may_be =
          decision.cut == Cut::Rows && !shape.empty() && shape[0] % 2 == 0 &&
          has_any(name, {"h_to_4h", "fc1", "gate_up", "w13", "w1_w3", "mlp.up", "wi."});
      if (!may_be || !columns.contains({layer_of(name), shape[0] / 2})) continue;
      decision = {Cut::TwoHalves,
                  "it has twice the rows that the next tensor of its layer has columns, as a gate "
                  "and what it opens in one tensor have",
                  true};
    }
  }

  /// Programs cut queries, keys and values in one tensor head by head, or one of the three after
  /// the other.
  void doubt_fused() {
    for (auto& [name, decision] : decisions_) {
      const bool is_fused =
          has_any(name, {"qkv", "query_key_value", "c_attn", "key_value", "kv_proj", "in_proj"});
      if (!is_fused || decision.cut != Cut::Rows) continue;
      decision.is_doubtful = true;
      decision.reason +=
          "; where queries, keys and values lie one behind the other, it belongs to "
          "parameter_with_sub_params";
    }
  }

  /// Layers whose tensors are cut in different ways have names of their own.
  Groups groups() const {
    Groups groups;
    for (const auto& [pattern, names] : groups_of_layers()) {
      const bool are_alike = std::ranges::all_of(names, [&](const std::string& name) {
        return decisions_.at(name).cut == decisions_.at(names.front()).cut;
      });
      if (are_alike) {
        groups[pattern] = names;
      } else {
        for (const std::string& name : names) groups[name_pattern_of(name, false)] = {name};
      }
    }
    return groups;
  }

  void add(const std::string& pattern, const std::vector<std::string>& names,
           CutProposal& proposal) const {
    const auto doubtful = std::ranges::find_if(
        names, [&](const std::string& name) { return decisions_.at(name).is_doubtful; });
    const std::string& shown = doubtful == names.end() ? names.front() : *doubtful;
    const Decision& decision = decisions_.at(shown);
    const CutText& text = words_of(decision.cut);
    proposal.cuts.push_back({pattern, names.size(), tensors_.at(shown).shards,
                             std::string(text.words), decision.reason, decision.is_doubtful});
    if (text.list != nullptr) proposal.rules[text.list].push_back(pattern);
  }

  const std::map<std::string, ComparedTensor> tensors_;
  const std::uint64_t hidden_;  ///< 0: unknown
  std::map<std::string, Decision> decisions_;
};

}  // namespace

std::optional<CutProposal> propose_cuts(Storage& storage, const Path& path,
                                        const std::optional<std::string>& tag) {
  if (const auto numbered = find_numbered_checkpoint(storage, path, tag))
    return propose_cuts(storage, *numbered, {});
  WatchedStorage watched(storage);
  std::optional<deepspeed::CutParts> parts;
  if (is_deepspeed(storage, path)) {
    parts = deepspeed::open_silent_ranks(watched, path, tag);
  } else if (probe(storage, path).format.empty() || has_named_parts(storage, path)) {
    parts = open_silent_parts(watched, path, tag);
  }
  if (!parts) return std::nullopt;
  auto compared = compare_ranks(*parts);
  watched.require_unchanged();
  return CutGuess(std::move(compared)).guess();
}

}  // namespace unishard::converters
