#include "formats/deepspeed/cut_rules.hpp"

#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace unishard::converters::deepspeed {
namespace {

using Widths = std::vector<std::vector<std::uint64_t>>;

/// From this version on the widths of sub-parameters on each rank are in the files.
constexpr double kVersionWithWidths = 0.4;

[[noreturn]] void raise_info(const std::string& what, std::string_view problem) {
  raise(ErrorCode::Corrupt, fmt::format("{}: universal_checkpoint_info: {}", what, problem));
}

std::size_t index_of(auto rule) { return static_cast<std::size_t>(rule); }

/// Returns the size of each rank's tensor along `dimension`.
std::vector<std::uint64_t> sizes_along(std::size_t dimension, const CutContext& context) {
  std::vector<std::uint64_t> sizes;
  sizes.reserve(context.shards.size());
  for (const Shape& shard : context.shards)
    sizes.push_back(dimension < shard.size() ? shard[dimension] : 0);
  return sizes;
}

TensorCut cut_in_rows(const CutContext& context) {
  return concatenated_cut(context, 0, {sizes_along(0, context)});
}

TensorCut halves(const CutContext& context) {
  std::vector<std::uint64_t> half = sizes_along(0, context);
  for (std::uint64_t& size : half) {
    if (size % 2 != 0)
      raise_info(context.what, fmt::format("{} rows cannot be two sub-parameters", size));
    size /= 2;
  }
  return concatenated_cut(context, 0, {half, half});
}

TensorCut mean(const CutContext& context) {
  const Shape& shape = context.shards.front();
  if (std::ranges::any_of(context.shards, [&](const Shape& shard) { return shard != shape; }))
    raise_info(context.what, "the ranks' tensors are to be averaged and differ in shape");
  return {shape, true, {}};
}

/// Returns widths[i][r] from lists of lists.
Widths widths_of(Value lists) {
  Widths widths;
  for (std::size_t i = 0; i < lists.size(); ++i) widths.push_back(shape_of(lists[i]));
  return widths;
}

/// Cuts every size evenly; files of older versions record no widths and were cut so.
Widths even_widths(const std::vector<std::uint64_t>& sizes, const CutContext& context) {
  Widths widths;
  for (const std::uint64_t size : sizes) {
    if (size % context.shards.size() != 0) {
      raise(ErrorCode::Unsupported,
            fmt::format("{}: a sub-parameter of {} rows was cut for {} ranks, and the files do not "
                        "say how",
                        context.what, size, context.shards.size()));
    }
    widths.emplace_back(context.shards.size(), size / context.shards.size());
  }
  return widths;
}

}  // namespace

CutRules::CutRules(std::optional<Value> info, const std::string& file, Json rules, bool are_users)
    : file_(file),
      json_(std::move(rules)),
      are_users_(are_users),
      memory_(file + ": universal_checkpoint_info") {
  try {
    if (info && info->is_dict()) {
      if (const auto map = present(*info, "affine_map")) affine_map_.emplace(*map);
      if (const auto version = present(*info, "universal_checkpoint_version"))
        version_ = version->real();
      if (const auto rows = present(*info, "original_vocab_size"))
        vocabulary_ = rows->unsigned_int();
      read_list(*info, "tp_replicated_parameter_patterns", Rule::Replicated);
      read_list(*info, "parameter_to_average_patterns", Rule::Mean);
      read_list(*info, "parameter_with_2_sub_params_cat_dim_0", Rule::Halves);
      read_list(*info, "parameter_with_row_parallelism_patterns", Rule::Rows);
      read_list(*info, "vocabulary_parameter_patterns", Rule::Vocabulary);
      read_list(*info, "autotp_unsupported_parameter_patterns", Rule::Unsupported);
      read_sub_parameters(*info);
    }
  } catch (const Error& error) {
    throw error.with_context(file + ": ");
  }
  const auto is_used = [](const NamePatterns& patterns) { return !patterns.empty(); };
  has_lists_ = std::ranges::any_of(patterns_, is_used) || !sub_parameters_.empty();
  if (affine_map_ || has_lists_) return;
  raise(ErrorCode::Unsupported,
        fmt::format("{}: the run was tensor-parallel, and universal_checkpoint_info, which would "
                    "say how its tensors were cut, {}",
                    file, info ? "has no rules" : "is missing"),
        "pass a file of rules as --merge-rules (`unishard inspect --layout` proposes one), or save "
        "again with "
        "universal_checkpoint_info in client_state (DeepSpeed's AutoTP and Megatron-DeepSpeed "
        "write it)");
}

void CutRules::read_list(Value info, std::string_view key, Rule rule) {
  const auto list = info.find(key);
  if (!list) return;
  const bool may_be_dict = rule == Rule::Unsupported;
  if (!list->is_sequence() && !(may_be_dict && list->is_dict()))
    raise(ErrorCode::Corrupt, fmt::format("{} of universal_checkpoint_info is no list", key));
  NamePatterns& patterns = patterns_[index_of(rule)];
  if (list->is_dict()) {  // of patterns and reasons
    for (std::size_t i = 0; i < list->pair_count(); ++i) {
      patterns.add(list->key(i).string(), reasons_.size());
      reasons_.emplace_back(list->value(i).string());
    }
    return;
  }
  for (std::size_t i = 0; i < list->size(); ++i) patterns.add((*list)[i].string(), i);
}

void CutRules::read_sub_parameters(Value info) {
  const auto list = info.find("parameter_with_sub_params");
  const auto widths = present(info, "sub_param_shard_widths");
  if (list && !list->is_sequence()) {
    raise(ErrorCode::Corrupt, "parameter_with_sub_params of universal_checkpoint_info is no list");
  }
  for (std::size_t i = 0; list && i < list->size(); ++i) {
    const Value entry = (*list)[i];
    const Value shape = entry.at("shape");
    const std::uint64_t dimension = entry.at("partition_dim").unsigned_int();
    if (!shape.is_sequence() || dimension >= shape.size())
      raise_info(file_, "the shape of a sub-parameter lacks the dimension of the cut");
    SubParameters rule{dimension, shape[dimension], std::nullopt, {}};
    for (std::size_t d = 0; d < shape.size(); ++d) {
      const bool is_known = d != dimension && shape[d].is(NodeKind::Int) && shape[d].integer() > 0;
      rule.view.push_back(is_known ? shape[d].unsigned_int() : 0);
    }
    const Value patterns = entry.at("patterns");
    for (std::size_t k = 0; k < patterns.size(); ++k) {
      rule.widths = widths ? present(*widths, patterns[k].string()) : std::nullopt;
      memory_.charge(sizeof rule + rule.view.size() * sizeof(std::uint64_t));
      sub_parameter_patterns_.add(patterns[k].string(), sub_parameters_.size());
      sub_parameters_.push_back(rule);
    }
  }
}

bool CutRules::matches(Rule rule, const std::string& fqn, const std::string& what) const {
  const std::size_t found = patterns_[index_of(rule)].find(fqn).size();
  if (found > 1) raise_info(what, "two patterns of one list match its name");
  return found == 1;
}

void CutRules::refuse_unsupported(const std::string& fqn, const std::string& what) const {
  const auto found = patterns_[index_of(Rule::Unsupported)].find(fqn);
  if (found.empty()) return;
  constexpr std::size_t kShown = 400;
  const std::string reason =
      found.front() < reasons_.size() ? reasons_[found.front()].substr(0, kShown) : std::string();
  raise(ErrorCode::Unsupported, fmt::format("{}: DeepSpeed says that it cannot be put together: {}",
                                            what, unishard::quote(reason)));
}

TensorCut CutRules::of_sub_parameters(const SubParameters& rule, const CutContext& context) const {
  for (const Shape& shard : context.shards) {
    bool fits = shard.size() == rule.view.size();
    for (std::size_t d = 0; fits && d < shard.size(); ++d)
      fits = rule.view[d] == 0 || rule.view[d] == shard[d];
    if (!fits) {
      raise(ErrorCode::Unsupported,
            fmt::format("{}: its sub-parameters are told of a view of it with other dimensions",
                        context.what));
    }
  }
  if (rule.widths) return concatenated_cut(context, rule.dimension, widths_of(*rule.widths));
  if (version_ >= kVersionWithWidths) raise_info(context.what, "sub_param_shard_widths lacks it");
  if (rule.sizes.is_sequence())
    return concatenated_cut(context, rule.dimension, even_widths(shape_of(rule.sizes), context));
  const std::uint64_t count = rule.sizes.unsigned_int();
  std::uint64_t rows = 0;
  for (const std::uint64_t size : sizes_along(rule.dimension, context))
    rows = checked_add(rows, size, "rows of a tensor");
  if (count == 0 || rows % count != 0 || count > rows)
    raise_info(context.what, fmt::format("{} rows are not {} sub-parameters", rows, count));
  context.memory.charge(checked_mul(count, (context.shards.size() + 4) * sizeof(std::uint64_t),
                                    "widths of sub-parameters"));
  return concatenated_cut(context, rule.dimension,
                          even_widths(std::vector<std::uint64_t>(count, rows / count), context));
}

std::optional<TensorCut> CutRules::by_pattern(const std::string& fqn,
                                              const CutContext& context) const {
  const std::string& what = context.what;
  if (matches(Rule::Replicated, fqn, what)) return replicated_cut(context);
  if (matches(Rule::Mean, fqn, what)) return mean(context);
  if (matches(Rule::Halves, fqn, what)) return halves(context);
  const auto sub = sub_parameter_patterns_.find(fqn);
  if (!sub.empty()) return of_sub_parameters(sub_parameters_[sub.front()], context);
  if (matches(Rule::Rows, fqn, what))
    return concatenated_cut(context, 1, {sizes_along(1, context)});
  return std::nullopt;
}

std::optional<TensorCut> CutRules::described_cut_of(const std::string& fqn,
                                                    const std::vector<Shape>& shards) {
  const std::string what = fmt::format("{}: {}", file_, unishard::quote(fqn));
  const CutContext context{shards, what, memory_};
  std::optional<TensorCut> mapped;
  if (affine_map_) mapped = affine_map_->cut_of(fqn, context);
  if (!mapped) return listed_cut_of(fqn, context);
  if (has_lists_) require_like_lists(*mapped, fqn, context);
  return mapped;
}

/// DeepSpeed writes both, for programs older than the map.
void CutRules::require_like_lists(const TensorCut& mapped, const std::string& fqn,
                                  const CutContext& context) {
  std::optional<TensorCut> listed;
  try {
    listed = listed_cut_of(fqn, context);
    if (!listed) listed = cut_in_rows(context);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Unsupported) throw;
    return;  // the lists cannot tell everything that the map tells
  }
  if (!is_same_cut(mapped, *listed))
    raise_info(context.what, "affine_map and the lists of patterns cut it in different ways");
}

std::optional<TensorCut> CutRules::listed_cut_of(const std::string& fqn,
                                                 const CutContext& context) {
  const auto& [shards, what, memory] = context;
  refuse_unsupported(fqn, what);
  auto cut = by_pattern(fqn, context);
  if (!matches(Rule::Vocabulary, fqn, what)) return cut;
  if (!cut) cut = cut_in_rows(context);
  if (!vocabulary_) raise_info(what, "original_vocab_size is missing");
  if (are_users()) require_rows_of_every_rank(shards, what);
  const Shape& shape = cut->shape;
  if (shape.empty() || shape.front() < *vocabulary_) {
    contradict(what, fmt::format("it has {} {}, and a tensor of the vocabulary has "
                                 "original_vocab_size of them, {}, or more",
                                 shape.empty() ? 1 : shape.front(),
                                 shape.size() < 2 ? "elements" : "rows", *vocabulary_));
  }
  padded_.insert_or_assign(fqn, shape);
  keep_rows(*cut, *vocabulary_);
  return cut;
}

void CutRules::contradict(const std::string& what, const std::string& problem) const {
  if (!are_users()) raise_info(what, problem);
  raise(ErrorCode::InvalidArgument, fmt::format("{}: {}", what, problem),
        "change vocabulary_parameter_patterns or original_vocab_size");
}

void CutRules::check_vocabulary() const {
  for (const auto& [fqn, shape] : padded_) {
    const std::uint64_t size = shape.front();
    const bool fits = std::ranges::any_of(padded_, [&](const auto& other) {
      return other.second.size() > 1 && other.second.front() == size;
    });
    if (shape.size() > 1 || fits) continue;
    contradict(
        fmt::format("{}: {}", file_, unishard::quote(fqn)),
        fmt::format("it has {} elements, and no matrix of the vocabulary has as many rows", size));
  }
}

void CutRules::require_rows_of_every_rank(const std::vector<Shape>& shards,
                                          const std::string& what) const {
  std::uint64_t before = 0;
  for (std::size_t r = 0; r + 1 < shards.size(); ++r)
    before = checked_add(before, shards[r].empty() ? 0 : shards[r][0], "rows of a tensor");
  if (*vocabulary_ > before) return;
  raise(ErrorCode::InvalidArgument,
        fmt::format("{}: original_vocab_size {} would leave nothing of the last rank's rows, and "
                    "the padding of a vocabulary is smaller",
                    what, *vocabulary_));
}

TensorCut CutRules::replicated(const std::string& fqn, const std::vector<Shape>& shards) {
  const std::string what = fmt::format("{}: {}", file_, unishard::quote(fqn));
  return replicated_cut({shards, what, memory_});
}

TensorCut CutRules::cut_of(const std::string& fqn, const std::vector<Shape>& shards) {
  if (auto cut = described_cut_of(fqn, shards)) return *std::move(cut);
  const std::string what = fmt::format("{}: {}", file_, unishard::quote(fqn));
  const CutContext context{shards, what, memory_};
  return cut_in_rows(context);
}

}  // namespace unishard::converters::deepspeed
