#include "formats/rank_comparison.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

namespace unishard::converters {
namespace {

/// Bytes of each rank that are compared at once.
constexpr std::uint64_t kStepBytes = std::uint64_t{1} << 20;

class RankComparison {
 public:
  explicit RankComparison(const deepspeed::CutParts& parts) : parts_(parts) {}

  std::map<std::string, ComparedTensor> compare() const {
    std::map<std::string, std::size_t> chosen;  // numbers in the first rank's catalog
    const std::vector<TensorInfo>& tensors = parts_.sources.front()->catalog().tensors;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const bool is_master = tensors[i].state == state::kFp32;
      if (!is_master && !deepspeed::is_of_model(tensors[i])) continue;
      const auto [at, is_new] = chosen.emplace(tensors[i].fqn, i);
      if (!is_new && is_master) at->second = i;
    }
    std::map<std::string, ComparedTensor> compared;
    for (const auto& [fqn, number] : chosen) {
      ComparedTensor one = compare_one(tensors[number], number);
      if (!(one.is_equal && tensors[number].state == state::kBuffer)) compared.emplace(fqn, one);
    }
    return compared;
  }

 private:
  ComparedTensor compare_one(const TensorInfo& tensor, std::size_t first) const {
    ComparedTensor compared;
    std::vector<std::size_t> numbers;
    for (std::size_t r = 0; r < parts_.sources.size(); ++r) {
      const Catalog& catalog = parts_.sources[r]->catalog();
      const auto found = r == 0 ? first : catalog.find(tensor.fqn, tensor.state);
      if (!found) {
        raise(ErrorCode::Corrupt, fmt::format("{} has {}, and {} has not", parts_.names.front(),
                                              tensor.label(), parts_.names[r]));
      }
      numbers.push_back(*found);
      compared.shards.push_back(catalog.tensors[*found].shape);
    }
    const auto is_like_first = [&](const Shape& shape) { return shape == tensor.shape; };
    const auto is_type_of_first = [&](std::size_t r) {
      return parts_.sources[r]->catalog().tensors[numbers[r]].dtype == tensor.dtype;
    };
    compared.is_equal = std::ranges::all_of(compared.shards, is_like_first);
    for (std::size_t r = 0; r < numbers.size(); ++r)
      compared.is_equal = compared.is_equal && is_type_of_first(r);
    if (compared.is_equal) compare_values(tensor, numbers, compared);
    return compared;
  }

  void compare_values(const TensorInfo& tensor, const std::vector<std::size_t>& numbers,
                      ComparedTensor& compared) const {
    const std::size_t width = size_of(tensor.dtype);
    const std::uint64_t step = std::max<std::uint64_t>(1, kStepBytes / width);
    std::vector<std::byte> value;  // the first element
    compared.has_one_value = true;
    for (std::uint64_t at = 0; at < tensor.elements(); at += step) {
      const ElementRange range{at, std::min(tensor.elements(), at + step)};
      std::vector<std::byte> first(range.size() * width), other(first.size());
      parts_.sources[0]->read(numbers[0], range, first);
      if (value.empty()) value.assign(first.begin(), first.begin() + std::ptrdiff_t(width));
      compared.has_one_value = compared.has_one_value && deepspeed::repeats(first, value);
      for (std::size_t r = 1; r < numbers.size(); ++r) {
        parts_.sources[r]->read(numbers[r], range, other);
        if (other == first) continue;
        compared.is_equal = compared.has_one_value = false;
        return;
      }
    }
  }

  const deepspeed::CutParts& parts_;
};

}  // namespace

std::map<std::string, ComparedTensor> compare_ranks(const deepspeed::CutParts& parts) {
  return RankComparison(parts).compare();
}

}  // namespace unishard::converters
