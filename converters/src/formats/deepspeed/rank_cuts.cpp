#include "formats/deepspeed/rank_cuts.hpp"

#include "unishard/converters/cut_patterns.hpp"
#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace unishard::converters::deepspeed_sink {
namespace {

/// Upper bound on the sub-parameters of one tensor. Real ones have a few.
constexpr std::uint64_t kSubParameters = 1u << 12;
/// Keys of universal_checkpoint_info.
constexpr const char* kWidths = "sub_param_shard_widths";
constexpr const char* kVocabularySize = "original_vocab_size";

Json patterns_of(const Catalog& catalog) {
  const Json& client = catalog.client_state;
  return client.is_object() ? client.value(kCutPatterns, Json()) : Json();
}

[[noreturn]] void refuse(const TensorInfo& tensor, const std::string& problem,
                         const char* hint =
                             "choose another number of tensor-parallel ranks, or "
                             "other rules: --merge-rules") {
  raise(ErrorCode::Unsupported, fmt::format("{}: {}", tensor.label(), problem), hint);
}

}  // namespace

RankCuts::RankCuts(const Catalog& catalog, const ParallelRanks& ranks)
    : ranks_(ranks.tensor.value_or(1)),
      multiple_(ranks.vocabulary_multiple.value_or(1)),
      info_(patterns_of(catalog)),
      rules_(catalog.client_state) {
  if (!rules_.empty()) return;
  raise(ErrorCode::Unsupported,
        "--tensor: the checkpoint does not say how tensor-parallel ranks cut its tensors",
        "pass a file of rules as --merge-rules (the keys are those of DeepSpeed's "
        "universal_checkpoint_info, which Megatron-DeepSpeed's checkpoints have in their client "
        "state)");
}

std::vector<RankShare> RankCuts::shares_of(const TensorInfo& tensor, const Shape& parameter) {
  if (tensor.shape.empty() && !parameter.empty())
    refuse(tensor,
           "a state that is one number for a parameter is not written for tensor-parallel ranks, "
           "whose files DeepSpeed's tools cannot put together",
           "leave --tensor out, or convert the weights alone: --weights-only");
  if (tensor.shape != parameter)
    refuse(tensor, "its shape differs from its parameter's, and the rules are about that",
           "convert to deepspeed without --tensor");
  const bool is_described = rules_.describes(tensor.fqn);
  // A buffer that no rule describes is on every rank.
  const bool is_plain_buffer = tensor.state == state::kBuffer && !is_described;
  if (!is_described && !is_plain_buffer) without_rule_.insert(tensor.fqn);
  const Cut cut = is_plain_buffer ? Cut() : cut_of(tensor);
  if (cut.sizes.empty()) return std::vector<RankShare>(ranks_, {tensor.shape, {}, true});
  std::vector<RankShare> shares;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) shares.push_back(share_of(tensor, cut, rank));
  return shares;
}

RankCuts::Cut RankCuts::cut_of(const TensorInfo& tensor) {
  Cut cut;
  if (const auto* rule = rules_.sub_parameters_of(tensor.fqn)) {
    cut.dimension = rule->dimension;
    if (rule->dimensions != tensor.shape.size())
      refuse(tensor, fmt::format("its sub-parameters are told of {} dimensions, and it has {}",
                                 rule->dimensions, tensor.shape.size()));
    cut.sizes = sub_parameters_of(tensor, *rule);
  } else {
    const deepspeed::UniversalCut told = rules_.cut_of(tensor.fqn);
    if (told.is_whole) return cut;
    cut.dimension = told.dimension;
    if (cut.dimension >= tensor.shape.size())
      refuse(tensor,
             fmt::format("it is to be cut along dimension {}, and has {}", cut.dimension,
                         tensor.shape.size()),
             "name it in tp_replicated_parameter_patterns of --merge-rules, if all ranks have it");
    const std::uint64_t size = tensor.shape[cut.dimension];
    if (size % told.sub_parameters != 0)
      refuse(tensor, fmt::format("{} rows are not {} equal parts", size, told.sub_parameters));
    cut.sizes.assign(told.sub_parameters, size / told.sub_parameters);
    if (told.is_vocabulary && cut.dimension == 0 && cut.sizes.size() == 1)
      cut.sizes.front() += padding_of(tensor);
  }
  for (const std::uint64_t size : cut.sizes) {
    if (size % ranks_ == 0) continue;
    refuse(tensor,
           fmt::format("dimension {} has {} elements{}, which {} ranks cannot share "
                       "equally",
                       cut.dimension, size, cut.sizes.size() > 1 ? " in a part" : "", ranks_));
  }
  return cut;
}

std::vector<std::uint64_t> RankCuts::sub_parameters_of(const TensorInfo& tensor,
                                                       const deepspeed::SubParameterRule& rule) {
  const std::uint64_t size =
      rule.dimension < tensor.shape.size() ? tensor.shape[rule.dimension] : 0;
  std::vector<std::uint64_t> sizes = rule.sizes;
  if (rule.count > 0) {
    if (rule.count > kSubParameters || size % rule.count != 0)
      refuse(tensor, fmt::format("{} rows are not {} sub-parameters", size, rule.count));
    sizes.assign(rule.count, size / rule.count);
  }
  std::uint64_t total = 0;
  for (const std::uint64_t each : sizes) total = checked_add(total, each, "rows of sub-parameters");
  if (total != size || size == 0 || sizes.size() > kSubParameters) {
    refuse(tensor, fmt::format("dimension {} has {} elements, and its sub-parameters {}",
                               rule.dimension, size, total));
  }
  if (rule.dimension > 0 && sizes.size() > 1)
    refuse(tensor, "sub-parameters along another dimension than the first are not written",
           "convert to deepspeed-universal, whose loader cuts whole tensors");
  const auto [known, is_new] = sizes_.emplace(rule.pattern, sizes);
  if (!is_new && known->second != sizes)
    refuse(tensor, fmt::format("the pattern {} also matches parameters with sub-parameters of "
                               "other sizes, and the files have one list of widths for it",
                               unishard::quote(rule.pattern)));
  return sizes;
}

/// Returns the rows that a parameter or a state of the vocabulary gets behind its own.
std::uint64_t RankCuts::padding_of(const TensorInfo& tensor) {
  const std::uint64_t rows = tensor.shape.front();
  const std::uint64_t step = std::uint64_t{multiple_} * ranks_;
  if (info_.value(kVocabularySize, Json()) != rows) {
    refuse(tensor,
           fmt::format("it has {} rows, and original_vocab_size is {}", rows,
                       info_.value(kVocabularySize, Json()).dump()),
           "change vocabulary_parameter_patterns or original_vocab_size: --merge-rules");
  }
  const std::uint64_t padding = (step - rows % step) % step;
  if (padding > 0) padded_[tensor.fqn] = checked_add(rows, padding, "rows of a vocabulary");
  return padding;
}

RankShare RankCuts::share_of(const TensorInfo& tensor, const Cut& cut, std::uint32_t rank) const {
  RankShare share{tensor.shape, {}, false};
  share.shape[cut.dimension] = 0;
  std::uint64_t begin = 0;
  for (const std::uint64_t size : cut.sizes) {
    const std::uint64_t width = size / ranks_;
    share.shape[cut.dimension] += width;
    unishard::Box box{Shape(tensor.shape.size(), 0), tensor.shape};
    const std::uint64_t whole = tensor.shape[cut.dimension];  // the rows behind it are padding
    box.offsets[cut.dimension] = std::min(whole, begin + rank * width);
    box.sizes[cut.dimension] =
        std::min(whole, begin + (rank + 1) * width) - box.offsets[cut.dimension];
    if (element_count(box.sizes) > 0) share.boxes.push_back(std::move(box));
    begin += size;
  }
  return share;
}

Json RankCuts::info() const {
  Json info = info_;
  Json widths = Json::object();
  for (const auto& [pattern, sizes] : sizes_) {
    Json& of_pattern = widths[pattern] = Json::array();
    for (const std::uint64_t size : sizes)
      of_pattern.push_back(Json(std::vector<std::uint64_t>(ranks_, size / ranks_)));
  }
  if (widths.empty()) {
    info.erase(kWidths);
  } else {
    info[kWidths] = std::move(widths);
  }
  return info;
}

std::vector<std::string> RankCuts::remarks() const {
  std::vector<std::string> lines;
  if (!without_rule_.empty()) {
    lines.push_back(
        fmt::format("{} parameters, {} first, match no pattern: they are cut along "
                    "dimension 0, as DeepSpeed does",
                    without_rule_.size(), unishard::quote(*without_rule_.begin())));
  }
  if (!padded_.empty()) {
    const auto& [name, rows] = *padded_.begin();
    lines.push_back(
        fmt::format("vocabularies get rows of zeros for {} tensor-parallel ranks: {} "
                    "has {} rows in all; the run must have as many (--vocab-multiple "
                    "is Megatron's --make-vocab-size-divisible-by)",
                    ranks_, unishard::quote(name), rows));
  }
  return lines;
}

}  // namespace unishard::converters::deepspeed_sink
