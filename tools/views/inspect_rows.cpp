#include "views/inspect_rows.hpp"

#include "views/inspect_order.hpp"
#include "workflows/name_parts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace unishard::cli {
namespace {

using Numbers = std::vector<std::uint32_t>;

/// A name with more numbers than any model has is not taken apart, so that a hostile one is cheap.
constexpr std::size_t kNumbersMax = 8;

/// A row before its name is put together.
struct Draft {
  std::vector<std::string> texts;
  std::vector<Numbers> numbers;  ///< between the texts
  InspectRow row;
};

/// Returns "3", "{0..47}" or "{0, 2, 5..7}", as the HTML report does.
std::string braces(const Numbers& sorted) {
  constexpr std::size_t kShown = 6;
  if (sorted.size() == 1) return std::to_string(sorted.front());
  std::vector<std::string> parts;
  for (std::size_t begin = 0, end = 0; begin < sorted.size(); begin = end) {
    if (parts.size() == kShown) {
      parts.emplace_back("...");
      break;
    }
    for (end = begin + 1; end < sorted.size() && sorted[end] == sorted[end - 1] + 1;) ++end;
    parts.push_back(end - begin == 1 ? std::to_string(sorted[begin])
                                     : fmt::format("{}..{}", sorted[begin], sorted[end - 1]));
  }
  return fmt::format("{{{}}}", fmt::join(parts, ", "));
}

/// Describes the states of one parameter that have the same shape.
Draft draft(const Catalog& catalog, const std::vector<std::size_t>& tensors) {
  const TensorInfo& first = catalog.tensors[tensors.front()];
  tools::NameParts parts = tools::split_name(first.fqn);
  if (parts.numbers.size() > kNumbersMax) parts = {{first.fqn}, {}};
  Draft out{std::move(parts.texts), {}, {}};
  for (const std::uint32_t number : parts.numbers) out.numbers.push_back({number});
  out.row.shape = shape_text(first.shape);
  out.row.group = first.group;
  out.row.elements = first.elements();
  std::vector<DType> dtypes;
  std::vector<std::string> states;  // one text per type
  for (const std::size_t index : tensors) {
    const TensorInfo& tensor = catalog.tensors[index];
    const std::string state = tensor.derived ? tensor.state + " (derived)" : tensor.state;
    const auto at = std::ranges::find(dtypes, tensor.dtype);
    if (at == dtypes.end()) {
      dtypes.push_back(tensor.dtype);
      states.push_back(state);
    } else {
      states[static_cast<std::size_t>(at - dtypes.begin())] += " " + state;
    }
    if (!tensor.derived) out.row.bytes += tensor.bytes();
    out.row.frozen |= tensor.frozen;
  }
  std::vector<std::string_view> names;
  for (const DType dtype : dtypes) names.push_back(name_of(dtype));
  out.row.dtypes = fmt::format("{}", fmt::join(names, ", "));
  out.row.states = fmt::format("{}", fmt::join(states, ", "));
  return out;
}

std::vector<Draft> drafts(const Catalog& catalog, const InspectView& view) {
  std::map<std::pair<std::string_view, Shape>, std::size_t> place;
  std::vector<std::vector<std::size_t>> parameters;
  for (const std::size_t index : shown_tensors(catalog, view)) {
    const TensorInfo& tensor = catalog.tensors[index];
    const auto [at, is_new] = place.try_emplace({tensor.fqn, tensor.shape}, parameters.size());
    if (is_new) parameters.emplace_back();
    parameters[at->second].push_back(index);
  }
  std::vector<Draft> out;
  out.reserve(parameters.size());
  for (const auto& tensors : parameters) out.push_back(draft(catalog, tensors));
  return out;
}

/// Joins the rows that differ in the number at `place` from the end only.
std::vector<Draft> joined(std::vector<Draft> rows, std::size_t place) {
  std::map<std::tuple<std::vector<std::string>, std::vector<Numbers>, std::string>, std::size_t>
      known;
  std::vector<Draft> out;
  for (Draft& each : rows) {
    if (place >= each.numbers.size()) {
      out.push_back(std::move(each));
      continue;
    }
    const std::size_t at = each.numbers.size() - 1 - place;
    std::vector<Numbers> others = each.numbers;
    others[at].clear();
    const InspectRow& row = each.row;
    const auto [found, is_new] =
        known.try_emplace({each.texts, std::move(others),
                           fmt::format("{}\n{}\n{}\n{}\n{}", row.shape, row.dtypes, row.states,
                                       row.group, row.frozen)},
                          out.size());
    if (is_new) {
      out.push_back(std::move(each));
      continue;
    }
    Draft& all = out[found->second];
    all.numbers[at].push_back(each.numbers[at].front());
    all.row.bytes += row.bytes;
    all.row.elements += row.elements;
  }
  for (Draft& each : out) {
    for (Numbers& numbers : each.numbers) std::ranges::sort(numbers);
  }
  return out;
}

}  // namespace

std::vector<InspectRow> inspect_rows(const Catalog& catalog, const InspectView& view) {
  std::vector<Draft> rows = drafts(catalog, view);
  std::size_t most_numbers = 0;
  for (const Draft& each : rows) most_numbers = std::max(most_numbers, each.numbers.size());
  for (std::size_t place = 0; view.collapse && place < most_numbers; ++place)
    rows = joined(std::move(rows), place);
  std::vector<InspectRow> out;
  out.reserve(rows.size());
  for (Draft& each : rows) {
    each.row.name = each.texts.front();
    for (std::size_t i = 0; i < each.numbers.size(); ++i)
      each.row.name += braces(each.numbers[i]) + each.texts[i + 1];
    out.push_back(std::move(each.row));
  }
  if (view.sort == SortBy::Bytes) std::ranges::stable_sort(out, std::greater{}, &InspectRow::bytes);
  if (view.sort == SortBy::Elements)
    std::ranges::stable_sort(out, std::greater{}, &InspectRow::elements);
  return out;
}

}  // namespace unishard::cli
