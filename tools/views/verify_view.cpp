#include "views/verify_view.hpp"

#include "unishard/format/box.hpp"
#include "unishard/format/text.hpp"

#include "support/size_text.hpp"
#include "views/table.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard::cli {
namespace {

constexpr std::size_t kLostShown = 20;

std::string details_text(const tools::Finding& finding) {
  std::string out = fmt::format("  {}\n", printable(finding.message));
  if (finding.bytes) {
    out += fmt::format("  bytes {} to {} of the file\n", finding.bytes->begin, finding.bytes->end);
  }
  for (std::size_t i = 0; i < std::min(finding.lost.size(), kLostShown); ++i) {
    const tools::LostRange& lost = finding.lost[i];
    out += fmt::format("  lost: {} {}\n", printable(lost.tensor),
                       elements_text(lost.range, lost.elements));
  }
  if (finding.lost.size() > kLostShown) {
    out += fmt::format("  lost: {} more ranges (--json lists all)\n",
                       finding.lost.size() - kLostShown);
  }
  if (!finding.hint.empty()) out += fmt::format("  hint: {}\n", printable(finding.hint));
  return out;
}

/// What was examined in a checkpoint, for scripts.
std::string_view looked_at(const tools::VerifyReport& report, const tools::CheckedTag& checked) {
  if (!report.deep) return "tables";
  return checked.bytes_without_checksum == 0 ? "checksums" : "data";
}

std::string looked_at_text(const tools::VerifyReport& report, const tools::CheckedTag& checked) {
  if (!report.deep) return "  looked at names, sizes and tables\n";
  const std::string_view unit = checked.format == "native" ? "chunks" : "checksums";
  return fmt::format("  {} {} and {} checked{}\n", tools::format_count(checked.chunks_checked),
                     unit, tools::format_bytes(checked.bytes_checked),
                     checked.bytes_without_checksum == 0
                         ? ""
                         : fmt::format(", {} of them without a checksum",
                                       tools::format_bytes(checked.bytes_without_checksum)));
}

/// What the check of a checkpoint without findings tells.
std::string_view verdict(const tools::VerifyReport& report) {
  if (!report.deep) return "sound as far as names, sizes and tables tell (--deep reads the data)\n";
  const bool has_digests = std::ranges::all_of(
      report.checked, [](const auto& tag) { return tag.bytes_without_checksum == 0; });
  const bool has_some = std::ranges::any_of(report.checked, [](const auto& tag) {
    return tag.bytes_without_checksum < tag.bytes_checked;
  });
  const bool is_native =
      std::ranges::all_of(report.checked, [](const auto& tag) { return tag.format == "native"; });
  if (has_digests && is_native) return "sound: every byte and every digest was checked\n";
  if (has_digests)
    return "sound: every checksum of the format was compared; what describes the data may have "
           "none\n";
  return has_some ? "readable: every byte could be read, and not all have a checksum\n"
                  : "readable: every byte could be read, and has no checksum\n";
}

}  // namespace

StyledText verify_text(const tools::VerifyReport& report) {
  StyledText out;
  for (const tools::CheckedTag& checked : report.checked) {
    out.add(fmt::format("{} ({}): {}{} tensors, {}{}\n", printable(checked.folder.string()),
                        checked.format,
                        checked.shards == 0 && checked.step == 0
                            ? ""
                            : fmt::format("step {}, {} shards, ", checked.step, checked.shards),
                        checked.tensors, tools::format_bytes(checked.payload_bytes),
                        checked.identity ? ", identity " + *checked.identity : ""));
    out.add(looked_at_text(report, checked));
  }
  for (const tools::Finding& finding : report.findings) {
    out.add(fmt::format("DAMAGE {}", finding.code), Style::Bad);
    out.add(fmt::format(": {}\n", printable(finding.path.string())));
    out.add(details_text(finding));
  }
  for (const std::string& note : report.notes) out.add(fmt::format("note: {}\n", printable(note)));
  if (report.is_clean()) {
    out.add(std::string(verdict(report)), Style::Good);
  } else {
    out.add(fmt::format("{} finding{}\n", report.findings.size(),
                        report.findings.size() == 1 ? "" : "s"),
            Style::Bad);
  }
  return out;
}

Json verify_json(const tools::VerifyReport& report) {
  Json json = {{"ok", report.is_clean()}, {"deep", report.deep}};
  Json checked = Json::array();
  for (const tools::CheckedTag& tag : report.checked) {
    checked.push_back({{"tag", tag.tag},
                       {"folder", tag.folder.string()},
                       {"format", tag.format},
                       {"looked_at", looked_at(report, tag)},
                       {"step", tag.step},
                       {"identity", tag.identity ? Json(*tag.identity) : Json(nullptr)},
                       {"shards", tag.shards},
                       {"tensors", tag.tensors},
                       {"payload_bytes", tag.payload_bytes},
                       {"chunks_checked", tag.chunks_checked},
                       {"bytes_checked", tag.bytes_checked},
                       {"bytes_without_checksum", tag.bytes_without_checksum}});
  }
  Json findings = Json::array();
  for (const tools::Finding& finding : report.findings) {
    Json lost = Json::array();
    for (const tools::LostRange& range : finding.lost) {
      lost.push_back({{"tensor", range.tensor},
                      {"begin", range.range.begin},
                      {"end", range.range.end},
                      {"elements", range.elements}});
    }
    Json bytes = nullptr;
    if (finding.bytes) bytes = {{"begin", finding.bytes->begin}, {"end", finding.bytes->end}};
    findings.push_back({{"code", finding.code},
                        {"path", finding.path.string()},
                        {"message", finding.message},
                        {"hint", finding.hint},
                        {"bytes", std::move(bytes)},
                        {"lost", std::move(lost)}});
  }
  json["checked"] = std::move(checked);
  json["findings"] = std::move(findings);
  json["notes"] = report.notes;
  return json;
}

}  // namespace unishard::cli
