#include "reading/packed_nibbles.hpp"

#include "reading/named_tensors.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace unishard::converters {
namespace {

/// The blocks that hold elements `range`.
ElementRange blocks_of(ElementRange range, std::uint64_t block) {
  return {range.begin / block, (range.end - 1) / block + 1};
}

class NibbleValues final : public QuantizedValues {
 public:
  explicit NibbleValues(PackedNibbles nibbles) : nibbles_(std::move(nibbles)) {}

  void read(const Source& source, ElementRange range, std::span<float> values) const override {
    unpack(source, range, values);
    const ElementRange blocks = blocks_of(range, nibbles_.block);
    std::vector<float> scales(blocks.size());
    read_scales(source, blocks, scales);
    for (std::uint64_t at = range.begin; at < range.end;) {
      const std::uint64_t number = at / nibbles_.block;
      const std::uint64_t left = nibbles_.block - at % nibbles_.block;
      const std::uint64_t end = at + std::min(left, range.end - at);
      for (float& value : values.subspan(at - range.begin, end - at))
        value *= scales[number - blocks.begin];
      at = end;
    }
  }

  std::uint64_t read_boundary(const Source& source, std::uint64_t element) const override {
    const std::uint64_t in_one = in_element(source);
    return source.read_boundary(nibbles_.numbers, element / in_one) * in_one;
  }

 private:
  /// How many numbers an element of the stored tensor holds, whatever its type.
  std::uint64_t in_element(const Source& source) const {
    return 2 * size_of(source.catalog().tensors[nibbles_.numbers].dtype);
  }

  void unpack(const Source& source, ElementRange range, std::span<float> values) const {
    const std::uint64_t in_one = in_element(source);
    const ElementRange stored = blocks_of(range, in_one);
    std::vector<std::byte> bytes(stored.size() * in_one / 2);
    source.read(nibbles_.numbers, stored, bytes);
    for (std::uint64_t at = range.begin; at < range.end; ++at) {
      const std::uint64_t number = at - stored.begin * in_one;
      const auto both = std::to_integer<unsigned>(bytes[number / 2]);
      values[at - range.begin] = nibbles_.table[number % 2 == 0 ? both >> 4U : both & 0xfU];
    }
  }

  void read_scales(const Source& source, ElementRange range, std::span<float> scales) const {
    if (!nibbles_.nested) return read_floats(source, nibbles_.scales, range, scales);
    const NestedScales& nested = *nibbles_.nested;
    std::vector<std::byte> numbers(range.size());
    source.read(nibbles_.scales, range, numbers);
    const ElementRange blocks = blocks_of(range, nested.block);
    std::vector<float> outer(blocks.size());
    read_floats(source, nested.scales, blocks, outer);
    for (std::uint64_t i = 0; i < range.size(); ++i) {
      const float value = nested.table[std::to_integer<unsigned>(numbers[i])];
      scales[i] = value * outer[(range.begin + i) / nested.block - blocks.begin];
    }
    for (float& scale : scales) scale += nested.offset;
  }

  const PackedNibbles nibbles_;
};

}  // namespace

std::shared_ptr<const QuantizedValues> make_packed_nibbles(PackedNibbles nibbles) {
  return std::make_shared<const NibbleValues>(std::move(nibbles));
}

}  // namespace unishard::converters
