// The layout and the formula are those of transformers' convert_moe_packed_tensors(): two numbers
// of 4 bits (E2M1) in a byte, the lower half first, 32 of them with one exponent. The weight that
// gpt-oss computes with has the last two axes in the other order.
#include "unishard/format/checked.hpp"
#include "unishard/format/error.hpp"

#include "reading/quantizers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace unishard::converters {
namespace {

constexpr std::string_view kBlocks = "_blocks";
constexpr std::uint64_t kBlockBytes = 16;
constexpr std::array<float, 16> kE2M1 = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                         -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

/// 2 to the power of each exponent.
const std::array<float, 256> kPowers = [] {
  constexpr int kBias = 127;
  std::array<float, 256> powers{};
  for (int i = 0; i < 256; ++i) powers[static_cast<std::size_t>(i)] = std::ldexp(1.0F, i - kBias);
  return powers;
}();

/// Of a weight (experts, inner, outer), the elements [inner] x [outer] of one expert.
struct Part {
  std::uint64_t expert = 0;
  ElementRange inner, outer;
};

class Mxfp4Values final : public QuantizedValues {
 public:
  /// `blocks` has the shape (experts, outer, groups, bytes).
  Mxfp4Values(std::size_t numbers, std::size_t scales, const Shape& blocks)
      : numbers_(numbers),
        scales_(scales),
        outer_(blocks[1]),
        in_group_(2 * blocks[3]),
        inner_(blocks[2] * in_group_) {}

  void read(const Source& source, ElementRange range, std::span<float> values) const override {
    for (std::uint64_t at = range.begin; at < range.end;) {
      const Part part = part_at(at, range.end);
      const std::uint64_t size = part.inner.size() * part.outer.size();
      read_part(source, part, values.subspan(at - range.begin, size));
      at += size;
    }
  }

  std::uint64_t read_boundary(const Source& /*source*/, std::uint64_t element) const override {
    return element;
  }

 private:
  /// Returns the longest part from element `at` on that is contiguous: a piece of a row, or rows.
  Part part_at(std::uint64_t at, std::uint64_t end) const {
    const std::uint64_t row = at / outer_, column = at % outer_;
    const std::uint64_t expert = row / inner_, first = row % inner_;
    const std::uint64_t left = end - at;
    if (column != 0 || left < outer_)
      return {expert, {first, first + 1}, {column, std::min(outer_, column + left)}};
    return {expert, {first, std::min(inner_, first + left / outer_)}, {0, outer_}};
  }

  void read_part(const Source& source, const Part& part, std::span<float> values) const {
    const ElementRange groups{part.inner.begin / in_group_, (part.inner.end - 1) / in_group_ + 1};
    const std::uint64_t bytes = in_group_ / 2;
    std::vector<std::byte> numbers(part.outer.size() * groups.size() * bytes);
    std::vector<std::byte> exponents(part.outer.size() * groups.size());
    const Shape offsets = {part.expert, part.outer.begin, groups.begin, 0};
    const Shape sizes = {1, part.outer.size(), groups.size(), bytes};
    source.read_box(numbers_, BoxView(offsets, sizes), numbers);
    source.read_box(scales_, BoxView(std::span(offsets).first(3), std::span(sizes).first(3)),
                    exponents);
    for (std::uint64_t outer = 0; outer < part.outer.size(); ++outer) {
      for (std::uint64_t inner = part.inner.begin; inner < part.inner.end; ++inner) {
        const std::uint64_t group = outer * groups.size() + inner / in_group_ - groups.begin;
        const std::uint64_t place = inner % in_group_;
        const auto both = std::to_integer<unsigned>(numbers[group * bytes + place / 2]);
        const float number = kE2M1[place % 2 == 0 ? both & 0xfU : both >> 4U];
        values[(inner - part.inner.begin) * part.outer.size() + outer] =
            number * kPowers[std::to_integer<std::size_t>(exponents[group])];
      }
    }
  }

  const std::size_t numbers_, scales_;
  const std::uint64_t outer_, in_group_, inner_;
};

QuantizedWeight describe(const NamedTensors& tensors, std::size_t numbers, std::size_t scales) {
  const TensorInfo& blocks = tensors[numbers];
  Shape expected = blocks.shape;
  if (!expected.empty()) expected.pop_back();
  if (tensors[scales].dtype != DType::UInt8 || blocks.shape.size() != 4 ||
      blocks.shape[3] != kBlockBytes || tensors[scales].shape != expected)
    raise_tensor(blocks, "not blocks of MXFP4 with a scale for each of them");
  const Shape& shape = blocks.shape;
  const std::uint64_t inner =
      checked_mul(checked_mul(shape[2], shape[3], "its shape"), 2, "its shape");
  return {.tensor = numbers,
          .fqn = blocks.fqn.substr(0, blocks.fqn.size() - kBlocks.size()),
          .dtype = DType::Float32,
          .shape = {shape[0], inner, shape[1]},
          .sides = {scales},
          .method = "MXFP4",
          .values = std::make_shared<const Mxfp4Values>(numbers, scales, shape)};
}

}  // namespace

void find_mxfp4(const NamedTensors& tensors, const QuantizationConfig& /*config*/,
                QuantizedWeights& found) {
  for (const std::size_t tensor : tensors.candidates()) {
    const std::string_view fqn = tensors[tensor].fqn;
    if (!fqn.ends_with(kBlocks) || tensors[tensor].dtype != DType::UInt8) continue;
    const std::string_view weight = fqn.substr(0, fqn.size() - kBlocks.size());
    if (const auto scales = tensors.find(fmt::format("{}_scales", weight)))
      found.push_back(describe(tensors, tensor, *scales));
  }
}

}  // namespace unishard::converters
