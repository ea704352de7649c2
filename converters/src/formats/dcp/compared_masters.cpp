#include "formats/dcp/compared_masters.hpp"

#include "unishard/format/error.hpp"

#include "core/rounded_elements.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <vector>

namespace unishard::converters::dcp {
namespace {

/// Upper bounds on the pieces of a master that are compared, and on the elements at
/// each of their ends.
constexpr std::size_t kPieces = 64;
constexpr std::uint64_t kElements = 64;

bool is_float(DType dtype) {
  return dtype == DType::Float32 || dtype == DType::BFloat16 || dtype == DType::Float16;
}

/// Returns the number of an element of a tensor.
std::uint64_t number_of(const Shape& element, const Shape& whole) {
  std::uint64_t number = 0;
  for (std::size_t d = 0; d < whole.size(); ++d) number = number * whole[d] + element[d];
  return number;
}

/// Returns elements at both ends of a box of a tensor, each of which lie behind each other.
std::array<ElementRange, 2> ends_of(const Box& box, const Shape& whole) {
  Shape last = box.offsets;
  for (std::size_t d = 0; d < last.size(); ++d) last[d] += box.sizes[d] - 1;
  const std::uint64_t row = box.sizes.empty() ? 1 : std::min(kElements, box.sizes.back());
  const std::uint64_t begin = number_of(box.offsets, whole), end = number_of(last, whole) + 1;
  return {{{begin, begin + row}, {end - row, end}}};
}

class Comparison {
 public:
  Comparison(const TensorEntry& master, const TensorEntry& weights, const Items& items)
      : master_(master), weights_(weights), items_(items) {}

  bool rounds() const {
    const std::size_t step = master_.chunks.size() / kPieces + 1;
    for (std::size_t i = 0; i < master_.chunks.size(); i += step) {
      const Box& box = master_.chunks[i].box;
      if (box.elements() == 0) continue;
      for (const ElementRange& range : ends_of(box, master_.shape))
        if (!rounds_in(range)) return false;
    }
    return true;
  }

 private:
  bool rounds_in(ElementRange range) const {
    std::vector<std::byte> wide(range.size() * size_of(master_.dtype)),
        own(range.size() * size_of(weights_.dtype));
    try {
      read_elements(master_, items_, range, wide, torch::Reading::Sample);
      read_elements(weights_, items_, range, own, torch::Reading::Sample);
    } catch (const Error&) {
      return true;  // the damage is told where all is read
    }
    return are_rounded(master_.dtype, wide, weights_.dtype, own);
  }

  const TensorEntry& master_;
  const TensorEntry& weights_;
  const Items& items_;
};

}  // namespace

std::optional<std::string> find_foreign_masters(const StateDict& state,
                                                const Arrangement& arranged) {
  std::map<std::string_view, const TensorEntry*> weights;
  const std::vector<TensorInfo>& tensors = arranged.catalog.tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].state == state::kWeights)
      weights.emplace(tensors[i].fqn, &state.tensors[arranged.entries[i]]);
  std::size_t compared = 0, different = 0;
  std::string first;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto found = weights.find(tensors[i].fqn);
    if (tensors[i].state != state::kFp32 || found == weights.end()) continue;
    const TensorEntry& master = state.tensors[arranged.entries[i]];
    const TensorEntry& own = *found->second;
    if (own.shape != master.shape || !is_float(own.dtype) || !is_float(master.dtype)) continue;
    ++compared;
    if (Comparison(master, own, *state.items).rounds()) continue;
    if (different++ == 0) first = tensors[i].fqn;
  }
  if (different == 0) return std::nullopt;
  return fmt::format(
      "the masters of {} of {} parameters, {} first, do not round to their weights: the masters "
      "are kept, and a file of one of them may be of another save or in another's place",
      different, compared, quote(first));
}

}  // namespace unishard::converters::dcp
