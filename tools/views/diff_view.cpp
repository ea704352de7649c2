#include "views/diff_view.hpp"

#include "unishard/format/text.hpp"

#include "support/size_text.hpp"
#include "views/table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace unishard::cli {
namespace {

using tools::DiffKind;
using tools::TensorDiff;

std::string_view kind_name(DiffKind kind) {
  switch (kind) {
    case DiffKind::OnlyInA:
      return "only_in_a";
    case DiffKind::OnlyInB:
      return "only_in_b";
    case DiffKind::Shape:
      return "shape";
    case DiffKind::DType:
      return "dtype";
    case DiffKind::Values:
      return "values";
    case DiffKind::Scalar:
      return "scalar";
    case DiffKind::Unread:
      return "unread";
  }
  return "";
}

std::string difference_text(const TensorDiff& found) {
  const tools::ElementDiff& values = found.elements;
  switch (found.kind) {
    case DiffKind::OnlyInA:
      return "only in A";
    case DiffKind::OnlyInB:
      return "only in B";
    case DiffKind::Shape:
      return fmt::format("shape {} and {}", found.a, found.b);
    case DiffKind::DType:
      return fmt::format("dtype {} and {}", found.a, found.b);
    case DiffKind::Scalar:
      return fmt::format("{} and {}", printable(found.a), printable(found.b));
    case DiffKind::Unread:
      return found.a.empty() ? fmt::format("not read from B: {}", printable(found.b))
                             : fmt::format("not read from A: {}", printable(found.a));
    case DiffKind::Values:
      if (values.max_abs == 0)
        return fmt::format(
            "{} of {} elements differ in bits only (signs of zeros, or NaNs), first element {}",
            tools::format_count(values.differing), tools::format_count(values.elements),
            values.max_index);
      return fmt::format(
          "{} of {} elements differ, most by {:.6g} at element {} ({:.9g} and {:.9g})",
          tools::format_count(values.differing), tools::format_count(values.elements),
          values.max_abs, values.max_index, values.a, values.b);
  }
  return {};
}

/// JSON has no infinity and no NaN, so they become texts.
Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(fmt::format("{}", value));
}

Json difference_json(const TensorDiff& found) {
  Json json = {{"tensor", found.tensor}, {"kind", kind_name(found.kind)}};
  if (found.kind == DiffKind::Shape || found.kind == DiffKind::DType ||
      found.kind == DiffKind::Scalar || found.kind == DiffKind::Unread) {
    json["a"] = found.a;
    json["b"] = found.b;
  }
  if (found.kind == DiffKind::Values) {
    json["elements"] = found.elements.elements;
    json["differing"] = found.elements.differing;
    json["beyond_tolerance"] = found.elements.beyond;
    json["max_abs"] = number(found.elements.max_abs);
    json["max_index"] = found.elements.max_index;
    json["a"] = number(found.elements.a);
    json["b"] = number(found.elements.b);
  }
  return json;
}

/// Returns, for example, "14 of 15 differ, 1 only in B"; "15 equal".
std::string count_text(const tools::StateCount& count) {
  std::vector<std::string> parts;
  if (count.different > 0)
    parts.push_back(fmt::format("{} of {} differ", count.different, count.compared));
  if (count.different == 0 && count.compared > 0)
    parts.push_back(fmt::format("{} equal", count.compared));
  if (count.only_a > 0) parts.push_back(fmt::format("{} only in A", count.only_a));
  if (count.only_b > 0) parts.push_back(fmt::format("{} only in B", count.only_b));
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// A tensor is one state of a parameter, so the number of tensors alone would tell little.
void add_counts(const tools::DiffReport& report, StyledText& out) {
  std::uint64_t tensors = 0;
  for (const auto& [state, count] : report.states)
    tensors += count.compared + count.only_a + count.only_b;
  out.add("different", Style::Bad);
  out.add(fmt::format(": {} of {} tensors ({} of {} parameters)\n", report.differences.size(),
                      tensors, report.different_names, report.names));
  for (const auto& [state, count] : report.states)
    out.add(fmt::format("  {}: {}\n", printable(state), count_text(count)));
  if (report.other_types > 0)
    out.add(fmt::format("hint: --upcast compares the values of {} tensors of different types\n",
                        report.other_types));
}

}  // namespace

StyledText diff_text(const tools::DiffReport& report) {
  StyledText out;
  for (const TensorDiff& found : report.differences) {
    out.add(printable(found.tensor), Style::Bad);
    out.add(fmt::format(": {}\n", difference_text(found)));
  }
  for (const TensorDiff& found : report.within_tolerance) {
    out.add(printable(found.tensor), Style::Notice);
    out.add(fmt::format(": within the tolerance: {}\n", difference_text(found)));
  }
  for (const std::string& line : report.information)
    out.add(fmt::format("info: {}\n", printable(line)));
  if (!report.same_state()) {
    add_counts(report, out);
    return out;
  }
  const std::string how = report.by_digest == report.compared
                              ? std::string("by digests, without reading data")
                              : fmt::format("{} by digests, {} read", report.by_digest,
                                            tools::format_bytes(report.bytes_read));
  out.add(report.within_tolerance.empty() ? "equal" : "equal within the tolerance", Style::Good);
  out.add(fmt::format(": {} tensors of {} parameters ({})\n", report.compared, report.names, how));
  if (report.identity_a && report.identity_a == report.identity_b)
    out.add(fmt::format("identity {}\n", *report.identity_a));
  return out;
}

Json diff_json(const tools::DiffReport& report) {
  const auto list = [](const std::vector<TensorDiff>& found) {
    Json json = Json::array();
    for (const TensorDiff& each : found) json.push_back(difference_json(each));
    return json;
  };
  Json states = Json::object();
  for (const auto& [state, count] : report.states) {
    states[state] = {{"compared", count.compared},
                     {"different", count.different},
                     {"only_in_a", count.only_a},
                     {"only_in_b", count.only_b}};
  }
  return {{"equal", report.same_state()},
          {"names", report.names},
          {"different_names", report.different_names},
          {"states", std::move(states)},
          {"identity_a", report.identity_a ? Json(*report.identity_a) : Json(nullptr)},
          {"identity_b", report.identity_b ? Json(*report.identity_b) : Json(nullptr)},
          {"tensors_compared", report.compared},
          {"tensors_by_digest", report.by_digest},
          {"bytes_read", report.bytes_read},
          {"differences", list(report.differences)},
          {"within_tolerance", list(report.within_tolerance)},
          {"information", report.information}};
}

}  // namespace unishard::cli
