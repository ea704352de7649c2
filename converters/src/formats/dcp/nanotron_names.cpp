#include "formats/dcp/nanotron_names.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include <fmt/format.h>

#include <charconv>

namespace unishard::converters::dcp::nanotron {
namespace {

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(at, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// Parses "pp-rank-0-of-2" or "pp-0-of-2".
std::optional<std::pair<std::string, RankOf>> parse_rank(std::string_view text) {
  constexpr std::string_view kOf = "-of-", kRank = "-rank";
  const std::size_t of = text.rfind(kOf);
  if (of == text.npos) return std::nullopt;
  const std::size_t dash = text.rfind('-', of - 1);
  if (of == 0 || dash == text.npos) return std::nullopt;
  const auto rank = number_of(text.substr(dash + 1, of - dash - 1));
  const auto ranks = number_of(text.substr(of + kOf.size()));
  std::string_view kind = text.substr(0, dash);
  if (kind.ends_with(kRank)) kind.remove_suffix(kRank.size());
  const bool is_kind = kind == "pp" || kind == "dp" || kind == "tp" || kind == "exp";
  if (!is_kind || !rank || !ranks || *ranks > limits::kWorldSize || *rank >= *ranks)
    return std::nullopt;
  return std::pair(std::string(kind), RankOf{*rank, *ranks});
}

[[noreturn]] void refuse(std::string_view what, std::string_view text) {
  constexpr std::size_t kShown = 200;
  raise(ErrorCode::Corrupt, fmt::format("{} {}", what, unishard::quote(text.substr(0, kShown))));
}

/// Parses "0,4,None" for a dimension of `size` indices.
ElementRange parse_slice(std::string_view text, std::uint64_t size) {
  const std::vector<std::string_view> parts = split(text, ',');
  if (parts.size() != 3) refuse("no slice:", text);
  if (parts[2] != "None" && parts[2] != "1")
    raise(ErrorCode::Unsupported, fmt::format("a slice with steps: {}", unishard::quote(text)));
  const auto index = [&](std::string_view part, std::uint64_t otherwise) {
    if (part == "None") return otherwise;
    const auto number = number_of(part);
    if (!number || *number > size) refuse("a slice that leaves the tensor:", text);
    return *number;
  };
  const ElementRange range{index(parts[0], 0), index(parts[1], size)};
  if (range.begin > range.end) refuse("no slice:", text);
  return range;
}

Box parse_box(std::string_view text, const Shape& shape) {
  const std::vector<std::string_view> slices = split(text, '|');
  if (slices.size() != shape.size()) refuse("slices of another number of dimensions:", text);
  Box box;
  for (std::size_t d = 0; d < slices.size(); ++d) {
    const ElementRange range = parse_slice(slices[d], shape[d]);
    box.offsets.push_back(range.begin);
    box.sizes.push_back(range.size());
  }
  return box;
}

}  // namespace

RankOf rank_in(const Ranks& ranks, std::string_view kind) {
  const auto found = ranks.find(kind);
  return found == ranks.end() ? RankOf() : found->second;
}

std::optional<Ranks> parse_ranks(std::string_view text) {
  Ranks ranks;
  for (const std::string_view part : split(text, '_')) {
    auto rank = parse_rank(part);
    if (!rank || !ranks.insert(*std::move(rank)).second) return std::nullopt;
  }
  return ranks;
}

std::optional<TensorFileName> parse_tensor_file(std::string_view name) {
  constexpr std::string_view kStart = "model_", kEnd = ".safetensors", kRanks = "_pp-rank-";
  if (!name.starts_with(kStart) || !name.ends_with(kEnd) ||
      name.size() <= kStart.size() + kEnd.size())
    return std::nullopt;
  name.remove_prefix(kStart.size());
  name.remove_suffix(kEnd.size());
  const std::size_t at = name.rfind(kRanks);
  if (at == name.npos) return TensorFileName{std::string(name), std::nullopt};
  auto ranks = parse_ranks(name.substr(at + 1));
  if (!ranks || at == 0) return std::nullopt;
  return TensorFileName{std::string(name.substr(0, at)), std::move(ranks)};
}

std::optional<Ranks> parse_rank_file(std::string_view kind, std::string_view name) {
  constexpr std::string_view kEnd = ".pt";
  if (!name.starts_with(kind) || !name.ends_with(kEnd)) return std::nullopt;
  name.remove_prefix(kind.size());
  name.remove_suffix(std::min(kEnd.size(), name.size()));
  if (!name.starts_with('_')) return std::nullopt;
  return parse_ranks(name.substr(1));
}

std::vector<CutBox> parse_slices(std::string_view pairs, const Shape& local, const Shape& whole) {
  std::vector<CutBox> boxes;
  for (const std::string_view pair : split(pairs, ';')) {
    const std::vector<std::string_view> sides = split(pair, '#');
    if (sides.size() != 2) refuse("no pair of slices:", pair);
    CutBox box{parse_box(sides[0], local), parse_box(sides[1], whole)};
    if (box.local.sizes != box.whole.sizes) refuse("slices of different sizes:", pair);
    boxes.push_back(std::move(box));
  }
  return boxes;
}

Shape parse_shape(std::string_view text) {
  const std::string_view all = text;
  if (!text.starts_with('(') || !text.ends_with(')')) refuse("no shape:", all);
  text = text.substr(1, text.size() - 2);
  Shape shape;
  for (std::string_view part : split(text, ',')) {
    while (part.starts_with(' ')) part.remove_prefix(1);
    if (part.empty()) continue;  // behind the comma of a tuple of one
    constexpr std::string_view kNumpy = "np.int64(";
    if (part.starts_with(kNumpy) && part.ends_with(')'))
      part = part.substr(kNumpy.size(), part.size() - kNumpy.size() - 1);
    const auto number = number_of(part);
    if (!number || shape.size() == limits::kDimensions) refuse("no shape:", all);
    shape.push_back(*number);
  }
  return shape;
}

}  // namespace unishard::converters::dcp::nanotron
