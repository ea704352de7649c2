#include "views/report/report_json.hpp"

#include "unishard/format/text.hpp"
#include "unishard/format/version.hpp"

#include "views/inspect_order.hpp"
#include "views/report/tensor_columns.hpp"
#include "workflows/report/finding_advice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

namespace unishard::cli {
namespace {

using tools::Report;
using tools::ReportedCheckpoint;

/// Most entries of a list on the page; the number of the others is given.
constexpr std::size_t kListed = 500, kLostListed = 8, kItemsListed = 24, kRanksListed = 1024;
constexpr std::size_t kTextBytes = 300;
constexpr unsigned kDepth = 4;

Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

std::string cut(const std::string& text) {
  if (text.size() <= kTextBytes) return text;
  std::size_t end = kTextBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

/// Returns free-form JSON without long texts and lists, which a run may have put there.
Json brief(const Json& value, unsigned depth = 0) {
  if (value.is_string()) return cut(value.get<std::string>());
  if (!value.is_structured()) return value;
  if (depth == kDepth) return value.is_array() ? "[...]" : "{...}";
  const std::size_t most = depth == 0 ? kListed : kItemsListed;
  const std::string rest = fmt::format("{} more", value.size() - std::min(value.size(), most));
  Json out = value.is_array() ? Json::array() : Json::object();
  for (const auto& [key, item] : value.items()) {
    const bool is_last = out.size() == most;
    if (value.is_array()) {
      out.push_back(is_last ? Json(rest) : brief(item, depth + 1));
    } else {
      out[is_last ? "..." : cut(key)] = is_last ? Json(rest) : brief(item, depth + 1);
    }
    if (is_last) break;
  }
  return out;
}

/// Returns the first entries of `list`, and a line on the others.
Json listed(const std::vector<std::string>& list) {
  Json out = Json::array();
  for (std::size_t i = 0; i < std::min(list.size(), kListed); ++i) out.push_back(cut(list[i]));
  if (list.size() > kListed) out.push_back(fmt::format("... and {} more", list.size() - kListed));
  return out;
}

Json finding_json(const tools::Finding& finding) {
  Json lost = Json::array();
  for (std::size_t i = 0; i < std::min(finding.lost.size(), kLostListed); ++i) {
    const tools::LostRange& range = finding.lost[i];
    lost.push_back({range.tensor, range.range.begin, range.range.end});
  }
  return {{"level", name_of(level_of(finding))},
          {"code", finding.code},
          {"path", printable(finding.path.string())},
          {"message", finding.message},
          {"advice", advice_for(finding)},
          {"bytes", finding.bytes ? Json({finding.bytes->begin, finding.bytes->end}) : Json()},
          {"lost", std::move(lost)},
          {"lost_ranges", finding.lost.size()}};
}

Json verified_json(const tools::VerifyReport& verified) {
  Json findings = Json::array();
  for (std::size_t i = 0; i < std::min(verified.findings.size(), kListed); ++i)
    findings.push_back(finding_json(verified.findings[i]));
  std::uint64_t bytes = 0, without_checksum = 0;
  for (const tools::CheckedTag& tag : verified.checked) {
    bytes += tag.bytes_checked;
    without_checksum += tag.bytes_without_checksum;
  }
  return {{"deep", verified.deep},
          {"bytes_checked", bytes},
          {"without_checksum", without_checksum},
          {"findings", std::move(findings)},
          {"count", verified.findings.size()},
          {"notes", listed(verified.notes)}};
}

Json states_json(const ReportedCheckpoint& checkpoint) {
  Json out = Json::array();
  for (const tools::StateBytes& row : checkpoint.states) {
    out.push_back({{"state", row.state},
                   {"dtype", name_of(row.dtype)},
                   {"tensors", row.tensors},
                   {"elements", row.elements},
                   {"bytes", row.bytes},
                   {"derived", row.derived}});
  }
  return out;
}

/// Returns the producer's notes, which `producer` holds, as text.
std::vector<std::string> producer_notes(const Json& producer) {
  std::vector<std::string> notes;
  if (!producer.is_object() || !producer.contains("notes")) return notes;
  for (const Json& note : producer["notes"]) {
    if (note.is_string()) notes.push_back(note.get<std::string>());
  }
  return notes;
}

Json checkpoint_json(const ReportedCheckpoint& checkpoint) {
  const tools::Description& description = checkpoint.description;
  const Catalog& catalog = description.catalog;
  Json out = {{"path", printable(description.path.string())},
              {"tag", or_null(description.tag)},
              {"problem", or_null(checkpoint.problem)},
              {"verified", verified_json(checkpoint.verified)}};
  if (!checkpoint.is_described) return out;
  // A manifest without its shards is that of a run.
  const bool is_run = description.is_run() || description.format == "native";
  std::uint64_t file_bytes = 0, shared_bytes = 0;
  for (const auto& shard : description.shards) {
    file_bytes += shard.bytes;
    shared_bytes += shard.shared_bytes;
  }
  std::vector<std::string> aliases;
  aliases.reserve(catalog.aliases.size());
  for (const Alias& alias : catalog.aliases)
    aliases.push_back(fmt::format("{} = {}", alias.fqn, alias.target));
  std::vector<std::string> notes = description.notes;
  for (std::string& note : producer_notes(catalog.producer)) notes.push_back(std::move(note));
  out.update({{"format", description.format},
              {"saved", or_null(time_text(description.saved_unix_seconds))},
              {"step", is_run ? Json(catalog.step) : Json()},
              {"world_size", is_run ? Json(catalog.world_size) : Json()},
              {"stage", is_run ? Json(catalog.stage) : Json()},
              {"identity", description.identity ? Json(*description.identity) : Json()},
              {"parameters", checkpoint.parameters},
              {"tensors", checkpoint.tensors},
              {"bytes", checkpoint.bytes},
              {"shards", description.shards.size()},
              {"file_bytes", file_bytes},
              {"shared_bytes", shared_bytes},
              {"compression", or_null(description.compression)},
              {"has_stats", checkpoint.has_stats},
              {"states", states_json(checkpoint)},
              {"aliases", listed(aliases)},
              {"notes", listed(notes)},
              {"groups", brief(catalog.groups)},
              {"producer", brief(catalog.producer)}});
  return out;
}

Json ownership_json(const tools::Ownership& owned) {
  if (owned.empty()) return nullptr;
  const std::size_t ranks = owned.rank_bytes.size();
  const std::size_t per_bar = std::max<std::size_t>(1, (ranks + kRanksListed - 1) / kRanksListed);
  Json bars = Json::array();
  for (std::size_t first = 0; first < ranks; first += per_bar) {
    const auto begin = owned.rank_bytes.begin() + static_cast<std::ptrdiff_t>(first);
    bars.push_back(*std::max_element(
        begin, begin + static_cast<std::ptrdiff_t>(std::min(per_bar, ranks - first))));
  }
  return {{"ranks", owned.ranks}, {"units", owned.units},     {"bytes", owned.bytes},
          {"count", ranks},       {"ranks_per_bar", per_bar}, {"bars", std::move(bars)}};
}

Json outliers_json(const Report& report) {
  Json out = Json::array();
  for (std::size_t i = 0; i < std::min(report.outliers.size(), kListed); ++i) {
    const tools::Outlier& outlier = report.outliers[i];
    out.push_back({{"tensor", outlier.tensor},
                   {"level", name_of(outlier.level)},
                   {"code", outlier.code},
                   {"message", outlier.message}});
  }
  return out;
}

/// Returns [norm, bad elements, tensors, least change, tensors that it is of] by checkpoint, group
/// and state.
Json history_json(const Report& report) {
  if (!report.history) return nullptr;
  Json points = Json::array(), order = Json::array();
  for (const std::size_t index : report.history_order) order.push_back(report.described[index]);
  for (const auto& groups : report.history->points(report.history_order)) {
    Json& of_checkpoint = points.emplace_back(Json::array());
    for (const auto& states : groups) {
      Json& of_group = of_checkpoint.emplace_back(Json::array());
      for (const tools::HistoryPoint& point : states) {
        of_group.push_back({few_digits(point.norm), point.bad, point.tensors,
                            few_digits(point.least_change), point.changed_tensors});
      }
    }
  }
  return {{"checkpoints", std::move(order)},
          {"groups", report.history->groups()},
          {"states", report.history->states()},
          {"points", std::move(points)}};
}

Json comparison_json(const Report& report) {
  if (!report.comparison) return nullptr;
  const tools::DigestComparison& found = *report.comparison;
  const Catalog& catalog = report.checkpoints[report.described[0]].description.catalog;
  Json read = nullptr;  // [tensor, differing elements, largest difference]
  if (found.read) {
    read = Json::array();
    std::unordered_map<std::string, std::size_t> index;
    for (std::size_t i = 0; i < catalog.tensors.size(); ++i)
      index.emplace(catalog.tensors[i].label(), i);
    for (const tools::TensorDiff& diff : found.read->differences) {
      const auto place = index.find(diff.tensor);
      if (diff.kind == tools::DiffKind::Values && place != index.end())
        read.push_back({place->second, diff.elements.differing, few_digits(diff.elements.max_abs)});
    }
  }
  return {{"a", report.described[0]},
          {"b", report.described[1]},
          {"equal", found.equal},
          {"different", found.different},
          {"unknown", found.unknown},
          {"only_first", found.only_first},
          {"only_second_count", found.only_second.size()},
          {"only_second", listed(found.only_second)},
          {"information", listed(found.information)},
          {"read", std::move(read)}};
}

}  // namespace

Json report_page_data(const Report& report) {
  Json checkpoints = Json::array();
  for (const ReportedCheckpoint& checkpoint : report.checkpoints)
    checkpoints.push_back(checkpoint_json(checkpoint));
  Json tensors = nullptr;
  if (!report.described.empty()) {
    const Catalog& catalog = report.checkpoints[report.described.front()].description.catalog;
    tensors = tensor_columns(catalog, report.comparison ? &*report.comparison : nullptr);
  }
  return {{"program", fmt::format("unishard {}", kLibraryVersion)},
          {"checkpoints", std::move(checkpoints)},
          {"details", report.described.empty() ? Json() : Json(report.described.front())},
          {"outliers", outliers_json(report)},
          {"outlier_count", report.outliers.size()},
          {"owned", ownership_json(report.owned)},
          {"history", history_json(report)},
          {"comparison", comparison_json(report)},
          {"tensors", std::move(tensors)}};
}

Json report_summary(const Report& report, const std::string& output, std::uint64_t page_bytes) {
  Json checkpoints = Json::array();
  for (const ReportedCheckpoint& checkpoint : report.checkpoints) {
    const bool is_described = checkpoint.is_described;
    const tools::Description& description = checkpoint.description;
    checkpoints.push_back(
        {{"path", description.path.string()},
         {"tag", or_null(description.tag)},
         {"format", or_null(description.format)},
         {"step", is_described && description.is_run() ? Json(description.catalog.step) : Json()},
         {"tensors", checkpoint.tensors},
         {"bytes", checkpoint.bytes},
         {"has_stats", checkpoint.has_stats},
         {"findings", checkpoint.verified.findings.size()},
         {"problem", or_null(checkpoint.problem)}});
  }
  Json outliers = Json::object();
  for (const tools::Outlier& outlier : report.outliers)
    outliers[outlier.code] = outliers.value(outlier.code, 0) + 1;
  Json compared = nullptr;
  if (report.comparison) {
    compared = {{"equal", report.comparison->equal},
                {"different", report.comparison->different},
                {"unknown", report.comparison->unknown},
                {"only_in_first", report.comparison->only_first},
                {"only_in_second", report.comparison->only_second.size()}};
  }
  return {{"output", or_null(output)},       {"page_bytes", page_bytes},
          {"ok", report.is_clean()},         {"checkpoints", std::move(checkpoints)},
          {"outliers", std::move(outliers)}, {"compared", std::move(compared)}};
}

}  // namespace unishard::cli
