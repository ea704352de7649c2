#include "formats/deepspeed/rank_join.hpp"

#include "unishard/converters/cut_patterns.hpp"
#include "unishard/format/error.hpp"

#include "formats/deepspeed/bias_fit.hpp"
#include "formats/deepspeed/listed_patterns.hpp"
#include "formats/deepspeed/parameter_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace unishard::converters::deepspeed {
namespace {

/// Numbers the ranks as the launcher does where tensor parallelism is innermost.
std::uint32_t global_rank(std::uint32_t tensor_rank, std::uint32_t data_rank, std::size_t tensors) {
  return static_cast<std::uint32_t>(data_rank * tensors + tensor_rank);
}

/// Elements that are compared to tell whether a buffer is the same on all ranks.
constexpr std::uint64_t kComparedElements = 4096;
/// Elements that are compared of the parts of a parameter: many parameters tell enough together.
constexpr std::uint64_t kComparedPart = 64;

void check_groups(const RankContent& first, const RankContent& other) {
  if (first.parts.catalog.groups != other.parts.catalog.groups)
    raise_two_saves(first.model_name, other.model_name, "their parameter groups differ");
}

/// Returns the values of the lists of patterns, which no rank has an order for.
std::map<std::string_view, std::set<std::string>> listed_rules(const Json& info) {
  std::map<std::string_view, std::set<std::string>> rules;
  const auto add = [&](std::string_view list) {
    if (!info.contains(list) || !info[list].is_array()) return;
    for (const Json& value : info[list]) rules[list].insert(value.dump());
  };
  for (const std::string_view list : kPatternLists) add(list);
  add(kSubParameterList);
  return rules;
}

/// Checks that the ranks tell the same rules. A rank that tells none may have been saved without.
void check_rules(const RankContent& first, const RankContent& other) {
  const auto info_of = [](const RankContent& rank) {
    const Json& client = rank.parts.catalog.client_state;
    return client.is_object() ? client.value(kCutPatterns, Json()) : Json();
  };
  const Json info = info_of(first), others = info_of(other);
  if (!info.is_object() || !others.is_object()) return;
  const auto rules = listed_rules(info), other_rules = listed_rules(others);
  for (const auto* lists : {&rules, &other_rules}) {
    for (const auto& [list, patterns] : *lists) {
      const auto one = rules.find(list), two = other_rules.find(list);
      if (one == rules.end() || two == other_rules.end() || one->second != two->second)
        raise_two_saves(first.model_name, other.model_name,
                        fmt::format("{} of {} differs", list, kCutPatterns));
    }
  }
  for (const char* key : {"original_vocab_size", "affine_map"}) {
    if (info.value(key, Json()) != others.value(key, Json()))
      raise_two_saves(first.model_name, other.model_name,
                      fmt::format("{} of {} differs", key, kCutPatterns));
  }
}

class PartsJoin {
 public:
  PartsJoin(CutParts parts, CutRules& rules, const std::string& where, Notes& notes)
      : rules_(rules),
        where_(where),
        notes_(notes),
        world_size_(parts.world_size),
        has_states_(parts.has_states),
        left_out_(parts.left_out),
        names_(std::move(parts.names)),
        shards_(std::move(parts.sources)) {
    out_.format = std::move(parts.format);
  }

  std::unique_ptr<Source> join() {
    out_.rank_of = global_rank;
    out_.catalog = shards_.front()->catalog();
    const std::vector<TensorInfo> tensors = std::exchange(out_.catalog.tensors, {});
    for (const TensorInfo& tensor : tensors) {
      if (is_taken(tensor)) add(tensor);
    }
    check_surplus();
    rules_.check_vocabulary();
    if (!rules_.are_users()) check_biases();
    note_equal_parts();
    finish_catalog();
    return make_joined_source(std::move(out_), std::move(shards_), where_);
  }

 private:
  bool is_taken(const TensorInfo& tensor) const {
    if (!left_out_.empty() && tensor.fqn.ends_with(left_out_)) return false;
    return has_states_ || is_of_model(tensor);
  }

  /// Returns the numbers of a tensor in the ranks' catalogs.
  std::vector<std::size_t> find(const TensorInfo& tensor) const {
    std::vector<std::size_t> numbers;
    for (std::size_t r = 0; r < shards_.size(); ++r) {
      const auto found = shards_[r]->catalog().find(tensor.fqn, tensor.state);
      if (!found)
        raise_two_saves(names_[0], names_[r], fmt::format("only one has {}", tensor.label()));
      const TensorInfo& other = shards_[r]->catalog().tensors[*found];
      if (other.dtype != tensor.dtype || other.frozen != tensor.frozen ||
          other.derived != tensor.derived || other.group != tensor.group) {
        raise_two_saves(names_[0], names_[r],
                        fmt::format("{} is described differently", tensor.label()));
      }
      numbers.push_back(*found);
    }
    return numbers;
  }

  void check_surplus() const {
    for (std::size_t r = 1; r < shards_.size(); ++r) {
      for (const TensorInfo& tensor : shards_[r]->catalog().tensors) {
        if (is_taken(tensor) && !shards_[0]->catalog().find(tensor.fqn, tensor.state))
          raise_two_saves(names_[0], names_[r], fmt::format("only one has {}", tensor.label()));
      }
    }
  }

  void add(const TensorInfo& tensor) {
    JoinedTensor joined{find(tensor), nullptr};
    const Cut* cut = cut_of(tensor, joined.tensors);
    if (cut == nullptr) {
      return notes_.lose(
          {Role::Buffer, tensor.fqn, "it differs between the tensor-parallel ranks"});
    }
    TensorInfo whole = tensor;
    whole.shape = cut->shape;
    if (!has_states_) whole.group = -1;
    joined.boxes = cut->boxes;
    if (!cut->boxes && is_weight(whole)) compare_averaged(whole, joined.tensors);
    // The weights of each rank were rounded from its own master; the mean has its own.
    if (!cut->boxes && whole.state == state::kWeights && has_master(whole)) whole.derived = true;
    out_.catalog.tensors.push_back(std::move(whole));
    out_.tensors.push_back(std::move(joined));
  }

  static bool is_weight(const TensorInfo& tensor) {
    return tensor.state == state::kFp32 || tensor.state == state::kWeights;
  }

  /// Says which parameter is averaged although its parts are no copies that drifted apart: the mean
  /// of parts that were cut is nobody's weight.
  void compare_averaged(const TensorInfo& tensor, const std::vector<std::size_t>& numbers) {
    constexpr double kAlike = 0.5;  // of copies it is nearly 1, of unlike parts nearly 0
    constexpr std::size_t kLeast = 16;
    if (tensor.elements() < kLeast || tensor.dtype != DType::Float32) return;
    const std::vector<std::byte> first = beginning(0, numbers[0]);
    for (std::size_t r = 1; r < shards_.size(); ++r) {
      if (likeness(first, beginning(r, numbers[r])) > kAlike) continue;
      out_.remarks.push_back(fmt::format(
          "{} is averaged, and the parts of {} and {} are unlike each other: rather they were cut, "
          "and their mean is not the weight",
          unishard::quote(tensor.fqn), names_[0], names_[r]));
      return;
    }
  }

  /// Returns the cosine of the angle between two vectors of float32; 1 where one is zero.
  static double likeness(std::span<const std::byte> a, std::span<const std::byte> b) {
    const auto value = [](std::span<const std::byte> bytes, std::size_t at) {
      float number = 0;
      std::memcpy(&number, bytes.data() + at, sizeof(float));
      return static_cast<double>(number);
    };
    double product = 0, of_a = 0, of_b = 0;
    for (std::size_t at = 0; at + sizeof(float) <= a.size(); at += sizeof(float)) {
      const double x = value(a, at), y = value(b, at);
      product += x * y;
      of_a += x * x;
      of_b += y * y;
    }
    const double size = std::sqrt(of_a) * std::sqrt(of_b);
    return size > 0 ? product / size : 1;
  }

  bool has_master(const TensorInfo& weights) const {
    return shards_.front()->catalog().find(weights.fqn, state::kFp32).has_value();
  }

  /// Refuses rules of the files by which a matrix does not fit its bias, although the first rank's
  /// parts fit. Rules of the user's are checked by MergeRules.
  void check_biases() const {
    std::set<std::string_view> odd;
    for (const BiasMisfit& misfit : bias_misfits(shards_.front()->catalog()))
      odd.insert(misfit.weight->fqn);
    for (const BiasMisfit& misfit : bias_misfits(out_.catalog)) {
      const std::string& name = misfit.weight->fqn;
      if (odd.contains(name)) continue;
      raise(ErrorCode::Corrupt,
            fmt::format("{}: {} becomes ({}) by the rules of {}, which does not fit {}.bias of {}, "
                        "and the ranks' parts fit each other",
                        where_, unishard::quote(name), fmt::join(misfit.weight->shape, ", "),
                        kCutPatterns, name.substr(0, name.rfind('.')), misfit.bias),
            "pass a file of rules as --merge-rules");
    }
  }

  /// What the states of one parameter share.
  struct Cut {
    std::vector<Shape> shards;
    Shape shape;
    std::shared_ptr<const std::vector<SharedBox>> boxes;
  };

  /// Returns null for a buffer that no rule describes and that differs.
  const Cut* cut_of(const TensorInfo& tensor, const std::vector<std::size_t>& numbers) {
    std::vector<Shape> shards;
    for (std::size_t r = 0; r < shards_.size(); ++r)
      shards.push_back(shards_[r]->catalog().tensors[numbers[r]].shape);
    const bool is_number = is_number_of_tensor(tensor);
    const std::string key = is_number ? tensor.label() : tensor.fqn;
    const auto known = cuts_.find(key);
    if (known != cuts_.end() && known->second.shards == shards) return &known->second;
    std::optional<TensorCut> cut;
    if (is_number) {
      cut = rules_.replicated(tensor.fqn, shards);
    } else if (tensor.state == state::kBuffer) {
      cut = cut_of_buffer(tensor, shards, numbers);
      if (!cut) return nullptr;
    } else {
      if (rules_.are_users()) require_rule(tensor, shards, numbers);
      cut = rules_.cut_of(tensor.fqn, shards);
    }
    return &keep(tensor.fqn, key, std::move(shards), *std::move(cut));
  }

  /// Returns whether a state is one number of a parameter that has dimensions. Its parameter is
  /// listed before it.
  bool is_number_of_tensor(const TensorInfo& tensor) const {
    const auto parameter = cuts_.find(tensor.fqn);
    return tensor.shape.empty() && parameter != cuts_.end() && !parameter->second.shape.empty();
  }

  std::optional<TensorCut> cut_of_buffer(const TensorInfo& tensor, const std::vector<Shape>& shards,
                                         const std::vector<std::size_t>& numbers) {
    if (auto cut = rules_.described_cut_of(tensor.fqn, shards)) return cut;
    if (!is_same(shards, numbers)) return std::nullopt;
    return rules_.replicated(tensor.fqn, shards);
  }

  /// A tensor without a rule is put together along dimension 0. One that all ranks have alike was
  /// rather not cut, and the user has forgotten it.
  void require_rule(const TensorInfo& tensor, const std::vector<Shape>& shards,
                    const std::vector<std::size_t>& numbers) {
    if (tensor.elements() < 2 || rules_.described_cut_of(tensor.fqn, shards)) return;
    unruled_.insert(tensor.fqn);
    if (!is_same(shards, numbers) || is_one_value(beginning(0, numbers.front()), tensor.dtype))
      return;
    raise(
        ErrorCode::InvalidArgument,
        fmt::format("--merge-rules: no pattern matches {}, and all ranks have the same values: it "
                    "was not cut",
                    unishard::quote(tensor.fqn)),
        "add it to tp_replicated_parameter_patterns");
  }

  static bool is_one_value(std::span<const std::byte> bytes, DType dtype) {
    return repeats(bytes, bytes.first(size_of(dtype)));
  }

  /// Compares the beginnings; the rest is compared when it is read.
  bool is_same(const std::vector<Shape>& shards, const std::vector<std::size_t>& numbers) const {
    const std::vector<std::byte> first = beginning(0, numbers[0]);
    for (std::size_t r = 1; r < shards_.size(); ++r) {
      if (shards[r] != shards[0] || beginning(r, numbers[r]) != first) return false;
    }
    return true;
  }

  std::vector<std::byte> beginning(std::size_t rank, std::size_t number) const {
    const std::uint64_t elements = shards_[rank]->catalog().tensors[number].elements();
    return elements_of(rank, number, {0, std::min(kComparedElements, elements)});
  }

  std::vector<std::byte> elements_of(std::size_t rank, std::size_t number,
                                     ElementRange range) const {
    const DType dtype = shards_[rank]->catalog().tensors[number].dtype;
    std::vector<std::byte> bytes(range.size() * size_of(dtype));
    shards_[rank]->read(number, range, bytes);
    return bytes;
  }

  /// Notes parameters whose different parts have the same values on two ranks. Nothing else shows
  /// that a rank's file was saved again under the name of another rank's.
  void note_equal_parts() {
    std::size_t count = 0, parameters = 0;
    std::string first;
    for (std::size_t i = 0; i < out_.tensors.size(); ++i) {
      const TensorInfo& tensor = out_.catalog.tensors[i];
      const bool is_master = tensor.state == state::kFp32;
      if (!is_master && (tensor.state != state::kWeights || has_master(tensor))) continue;
      const auto ranks = compare_parts(out_.tensors[i], parameters++).ranks;
      if (ranks && count++ == 0) {
        first = fmt::format("{} on ranks {} and {}", unishard::quote(tensor.fqn), ranks->first,
                            ranks->second);
      }
    }
    if (count == 0) return note_equal_moments();
    notes_.add(fmt::format(
        "{} parameters, first {}, have the same values in different parts of the whole tensor: a "
        "rank's file may be another's under a wrong name (files: {})",
        count, first, fmt::join(names_, ", ")));
  }

  /// Notes moments whose different parts have the same values on two ranks, where the weights have
  /// others. One matrix alone may have such: the rows of a head that was zero do, of tokens that
  /// were not seen. A quarter of them is the least that one file of a rank can hold of a run with
  /// two stages or two data-parallel ranks.
  void note_equal_moments() {
    constexpr std::size_t kLeastShare = 4;
    std::size_t telling = 0, moments = 0;
    std::map<std::pair<std::size_t, std::size_t>, std::size_t> counts;
    std::map<std::pair<std::size_t, std::size_t>, std::string> first;
    for (std::size_t i = 0; i < out_.tensors.size(); ++i) {
      const TensorInfo& tensor = out_.catalog.tensors[i];
      if (is_of_model(tensor) || tensor.state == state::kFp32) continue;
      const EqualParts parts = compare_parts(out_.tensors[i], moments++);
      if (parts.tell) ++telling;
      if (!parts.ranks) continue;
      ++counts[*parts.ranks];
      first.emplace(*parts.ranks, tensor.label());
    }
    for (const auto& [ranks, count] : counts) {
      if (count < 2 || count * kLeastShare < telling) continue;
      notes_.add(fmt::format(
          "{} moments of the optimizer, first {}, have the same values in different parts of the "
          "whole tensor, on ranks {} and {}, and their parameters have not: "
          "a rank's moments may be another's (files: {})",
          count, first.at(ranks), ranks.first, ranks.second, fmt::join(names_, ", ")));
    }
  }

  /// How the parts of a tensor compare.
  struct EqualParts {
    bool tell = false;  ///< two or more are other than one value many times
    std::optional<std::pair<std::size_t, std::size_t>> ranks;  ///< the first with the same values
  };

  /// Compares parts that do not overlap. At stage 3 the file of each data-parallel rank has a piece
  /// of every parameter: of parameter number n, the piece of rank n is compared, counted round.
  EqualParts compare_parts(const JoinedTensor& joined, std::size_t parameter) const {
    const auto is_shared = [](const SharedBox& box) { return box.copies.size() > 1; };
    EqualParts result;
    if (!joined.boxes || std::ranges::any_of(*joined.boxes, is_shared)) return result;
    const std::uint64_t pieces = std::max<std::uint64_t>(1, world_size_ / shards_.size());
    std::map<std::vector<std::byte>, std::size_t> seen;
    for (std::size_t r = 0; r < shards_.size(); ++r) {
      const TensorInfo& part = shards_[r]->catalog().tensors[joined.tensors[r]];
      if (part.elements() < 2) continue;
      const std::uint64_t size = (part.elements() - 1) / pieces + 1;
      const std::uint64_t begin = std::min(part.elements(), parameter % pieces * size);
      const std::uint64_t compared = std::min({size, kComparedPart, part.elements() - begin});
      if (compared < 2) continue;
      std::vector<std::byte> bytes = elements_of(r, joined.tensors[r], {begin, begin + compared});
      if (is_one_value(bytes, part.dtype)) continue;
      result.tell = result.tell || !seen.empty();
      const auto [place, is_new] = seen.emplace(std::move(bytes), r);
      if (!is_new && !result.ranks) result.ranks = std::pair(place->second, r);
    }
    return result;
  }

  const Cut& keep(const std::string& fqn, const std::string& key, std::vector<Shape> shards,
                  TensorCut cut) {
    Cut kept{std::move(shards), std::move(cut.shape), nullptr};
    if (cut.dropped_rows > 0) {
      const bool is_one = cut.dropped_rows == 1;
      out_.remarks.push_back(fmt::format(
          "{}: {} {}{} of padding behind original_vocab_size {} dropped", fqn, cut.dropped_rows,
          kept.shape.size() == 1 ? "element" : "row", is_one ? "" : "s", is_one ? "was" : "were"));
    }
    if (!cut.is_mean)
      kept.boxes = std::make_shared<const std::vector<SharedBox>>(std::move(cut.boxes));
    return cuts_.insert_or_assign(key, std::move(kept)).first->second;
  }

  void finish_catalog() {
    Catalog& catalog = out_.catalog;
    catalog.world_size = static_cast<std::uint32_t>(std::min<std::uint64_t>(world_size_, ~0u));
    keep_cut_patterns(catalog, has_states_ && rules_.are_users() ? rules_.json() : Json());
    tell_rules(catalog);
    if (!has_states_) catalog.groups = nullptr;
    out_.notes = notes_.lines();
    out_.losses = notes_.losses();
  }

  /// An affine map tells of the ranks of this run only, and leaves no rules.
  void tell_rules(const Catalog& catalog) {
    const Json& client = catalog.client_state;
    const Json rules =
        has_states_ && client.is_object() ? client.value(kCutPatterns, Json()) : rules_.json();
    if (!rules.is_object()) return;
    const std::vector<ListedPattern> unmatched = unmatched_patterns(rules, catalog);
    out_.cut_rules = without_patterns(rules, unmatched);
    if (rules_.are_users()) return say_unruled();
    say_unmatched(unmatched, names_.front(), out_.remarks);
    say_contradictions(rules, catalog, names_.front(), out_.remarks);
  }

  void say_unruled() {
    if (unruled_.empty()) return;
    out_.remarks.push_back(fmt::format(
        "{} parameters, {} first, match no pattern of the rules: their parts are put together "
        "along dimension 0, as DeepSpeed does",
        unruled_.size(), unishard::quote(*unruled_.begin())));
  }

  CutRules& rules_;
  const std::string& where_;
  Notes& notes_;
  std::uint64_t world_size_;
  bool has_states_;
  std::string_view left_out_;
  std::vector<std::string> names_;  ///< files of the ranks
  std::vector<std::unique_ptr<Source>> shards_;
  std::map<std::string, Cut> cuts_;  ///< by fqn, those of numbers by label
  std::set<std::string> unruled_;    ///< parameters that no rule of the user's names
  JoinedCatalog out_;
};

}  // namespace

bool repeats(std::span<const std::byte> bytes, std::span<const std::byte> value) {
  for (std::size_t at = 0; at < bytes.size(); at += value.size()) {
    if (!std::ranges::equal(bytes.subspan(at, value.size()), value)) return false;
  }
  return true;
}

bool is_of_model(const TensorInfo& tensor) {
  return tensor.state == state::kWeights || tensor.state == state::kBuffer;
}

std::unique_ptr<Source> join_parts(CutParts parts, CutRules& rules, const std::string& where,
                                   Notes& notes) {
  return PartsJoin(std::move(parts), rules, where, notes).join();
}

CutParts parts_of(std::vector<RankContent> ranks) {
  for (const RankContent& rank : ranks) {
    check_one_save(ranks.front(), rank);
    check_groups(ranks.front(), rank);
  }
  CutParts parts{.format = "deepspeed", .world_size = 0};
  for (RankContent& rank : ranks) {
    parts.world_size += rank.world_size;
    parts.names.push_back(rank.model_name);
    parts.sources.push_back(make_pieced_source(std::move(rank.parts), rank.model_name));
  }
  return parts;
}

std::unique_ptr<Source> join_ranks(std::vector<RankContent> ranks, CutRules& rules,
                                   const std::string& where, Notes& notes) {
  for (const RankContent& rank : ranks) {
    note_differing_facts(ranks.front(), rank, notes);
    if (!rules.are_users()) check_rules(ranks.front(), rank);
  }
  return join_parts(parts_of(std::move(ranks)), rules, where, notes);
}

}  // namespace unishard::converters::deepspeed
