#include "views/diff_view.hpp"

#include "unishard/format/text.hpp"

#include "support/size_text.hpp"
#include "views/table.hpp"

#include <fmt/format.h>

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
    case DiffKind::Values:
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
  if (found.kind == DiffKind::Shape || found.kind == DiffKind::DType) {
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

/// Tensors that one side alone has are not among those that were compared.
std::string count_differences(const tools::DiffReport& report) {
  const auto count = [&](DiffKind kind) {
    return static_cast<std::uint64_t>(
        std::ranges::count(report.differences, kind, &TensorDiff::kind));
  };
  const std::uint64_t only_a = count(DiffKind::OnlyInA), only_b = count(DiffKind::OnlyInB);
  std::string out = fmt::format("different: {} of {} tensors", report.differences.size(),
                                report.compared + only_a + only_b);
  if (only_a + only_b > 0)
    out +=
        fmt::format(" ({} only in A, {} only in B, {} in both)", only_a, only_b, report.compared);
  return out + "\n";
}

}  // namespace

std::string diff_text(const tools::DiffReport& report) {
  std::string out;
  for (const TensorDiff& found : report.differences) {
    out += fmt::format("{}: {}\n", printable(found.tensor), difference_text(found));
  }
  for (const TensorDiff& found : report.within_tolerance) {
    out += fmt::format("{}: within the tolerance: {}\n", printable(found.tensor),
                       difference_text(found));
  }
  for (const std::string& line : report.information)
    out += fmt::format("info: {}\n", printable(line));
  if (!report.same_state()) return out + count_differences(report);
  const std::string how = report.by_digest == report.compared
                              ? std::string("by digests, without reading data")
                              : fmt::format("{} by digests, {} read", report.by_digest,
                                            tools::format_bytes(report.bytes_read));
  out += fmt::format("{}: {} tensors ({})\n",
                     report.within_tolerance.empty() ? "equal" : "equal within the tolerance",
                     report.compared, how);
  if (report.identity_a && report.identity_a == report.identity_b) {
    out += fmt::format("identity {}\n", *report.identity_a);
  }
  return out;
}

Json diff_json(const tools::DiffReport& report) {
  const auto list = [](const std::vector<TensorDiff>& found) {
    Json json = Json::array();
    for (const TensorDiff& each : found) json.push_back(difference_json(each));
    return json;
  };
  return {{"equal", report.same_state()},
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
