#include "unishard/format/text.hpp"

#include "support/size_text.hpp"
#include "views/inspect_order.hpp"
#include "views/inspect_rows.hpp"
#include "views/table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace unishard::cli {
namespace {

using tools::Description;
using tools::format_bytes;
using tools::format_count;

std::string dtype_summary(const Catalog& catalog) {
  std::map<std::string_view, std::uint64_t> bytes;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (!tensor.derived) bytes[name_of(tensor.dtype)] += tensor.bytes();
  }
  std::vector<std::string> parts;
  for (const auto& [name, count] : bytes) {
    parts.push_back(fmt::format("{} {}", name, format_bytes(count)));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string summary(const Description& description) {
  const Catalog& catalog = description.catalog;
  std::string out;
  const auto line = [&](std::string_view name, const std::string& value) {
    if (!value.empty()) out += fmt::format("{:<12} {}\n", name, printable(value));
  };
  line("checkpoint", description.path.string());
  line("format", description.format);
  line("tag", description.tag);
  line("latest", description.latest.value_or(""));
  line("saved", time_text(description.saved_unix_seconds));
  if (description.is_run()) {
    line("step", std::to_string(catalog.step));
    line("world size", std::to_string(catalog.world_size));
    line("ZeRO stage", std::to_string(catalog.stage));
    if (!description.shards.empty()) line("shards", std::to_string(description.shards.size()));
  }
  line("parameters", format_count(catalog.parameter_count()));
  line("tensors", format_count(catalog.tensors.size()));
  line("bytes", fmt::format("{} ({})", format_bytes(catalog.stored_bytes()),
                            format_count(catalog.stored_bytes())));
  std::uint64_t files = 0, shared = 0;
  std::size_t holders = 0;
  for (const auto& shard : description.shards) {
    files += shard.bytes;
    shared += shard.shared_bytes;
    holders += shard.shared_with.size();
  }
  if (shared > 0) {
    line("shared",
         fmt::format("{} with earlier saves ({} {}), {} in the shards", format_bytes(shared),
                     holders, holders == 1 ? "file" : "files", format_bytes(files)));
  }
  if (!description.compression.empty()) {
    line("compressed",
         fmt::format("{}, {} in the shards", description.compression, format_bytes(files)));
  }
  line("dtypes", dtype_summary(catalog));
  if (catalog.groups.is_array()) line("groups", std::to_string(catalog.groups.size()));
  for (const Alias& alias : catalog.aliases) line("tied", alias.fqn + " = " + alias.target);
  line("identity", description.identity.value_or(""));
  for (const std::string& note : description.notes) line("note", note);
  const auto notes =
      catalog.producer.is_object() ? catalog.producer.find("notes") : catalog.producer.end();
  if (catalog.producer.is_object() && notes != catalog.producer.end() && notes->is_array()) {
    for (const Json& note : *notes) {
      if (note.is_string()) line("note", note.get<std::string>());
    }
  }
  return out;
}

std::string nothing_text(const Catalog& catalog) {
  return catalog.tensors.empty() ? "no tensors\n" : "no tensor matches the filter\n";
}

std::string group_text(std::int32_t group) { return group < 0 ? "-" : std::to_string(group); }

std::string flags(const TensorInfo& tensor) {
  std::vector<std::string_view> words;
  if (tensor.frozen) words.push_back("frozen");
  if (tensor.derived) words.push_back("derived");
  return fmt::format("{}", fmt::join(words, " "));
}

std::vector<std::string> stats_cells(const TensorInfo& tensor) {
  if (!tensor.stats || tensor.stats->count == 0) return {"-", "-", "-", "-", "-"};
  const Stats& stats = *tensor.stats;
  const bool is_finite = stats.finite_count() > 0;
  const auto number = [&](double value) {
    return is_finite ? fmt::format("{:.6g}", value) : std::string("-");
  };
  return {format_count(stats.nan_count), format_count(stats.inf_count), number(stats.min),
          number(stats.max), number(std::sqrt(stats.sum_squares))};
}

/// One row per state of each parameter.
Table tensor_table(const Catalog& catalog, const InspectView& view) {
  std::vector<Table::Column> columns = {{"tensor"},
                                        {"state"},
                                        {"dtype"},
                                        {"shape"},
                                        {"bytes", Align::Right},
                                        {"group", Align::Right}};
  if (view.stats) {
    for (const char* title : {"NaN", "Inf", "min", "max", "norm"}) {
      columns.push_back({title, Align::Right});
    }
  }
  columns.push_back({""});
  Table table(std::move(columns));
  for (const std::size_t index : shown_tensors(catalog, view)) {
    const TensorInfo& tensor = catalog.tensors[index];
    std::vector<std::string> cells = {tensor.fqn,
                                      tensor.state,
                                      std::string(name_of(tensor.dtype)),
                                      shape_text(tensor.shape),
                                      format_bytes(tensor.bytes()),
                                      group_text(tensor.group)};
    if (view.stats) {
      for (std::string& cell : stats_cells(tensor)) cells.push_back(std::move(cell));
    }
    cells.push_back(flags(tensor));
    table.add(std::move(cells));
  }
  return table;
}

Table parameter_table(const Catalog& catalog, const InspectView& view) {
  Table table({{"parameter"},
               {"shape"},
               {"dtype"},
               {"states"},
               {"bytes", Align::Right},
               {"group", Align::Right},
               {""}});
  for (const InspectRow& row : inspect_rows(catalog, view)) {
    table.add({row.name, row.shape, row.dtypes, row.states, format_bytes(row.bytes),
               group_text(row.group), row.frozen ? "frozen" : ""});
  }
  return table;
}

}  // namespace

std::string inspect_text(const Description& description, const InspectView& view) {
  const Table table = view.states ? tensor_table(description.catalog, view)
                                  : parameter_table(description.catalog, view);
  return summary(description) + "\n" +
         (table.empty() ? nothing_text(description.catalog) : table.text());
}

std::string layout_text(const Description& description, const InspectView& view) {
  constexpr std::size_t kNameMax = 40;
  std::string out;
  const std::vector<std::size_t> shown = shown_tensors(description.catalog, view);
  std::size_t name_width = 0;
  for (const std::size_t index : shown) {
    name_width =
        std::max(name_width, display_width(printable(description.catalog.tensors[index].label())));
  }
  name_width = std::min(name_width, kNameMax);
  const std::size_t bar_width = std::max<std::size_t>(view.width, name_width + 23) - name_width - 3;
  for (const std::size_t index : shown) {
    const TensorInfo& tensor = description.catalog.tensors[index];
    std::string name = printable(tensor.label());
    if (name.size() > kNameMax) {
      std::size_t cut = name.size() - (kNameMax - 3);
      while ((static_cast<unsigned char>(name[cut]) & 0xc0) == 0x80)
        ++cut;  // not inside of a letter
      name = "..." + name.substr(cut);
    }
    const auto& owners = description.owners.at(index);
    const std::string padding(name_width - std::min(display_width(name), name_width), ' ');
    out +=
        fmt::format("{}{} |{}|\n", name, padding, tools::draw_bar(owners, tensor.shape, bar_width));
    constexpr std::size_t kListed = 4;
    if (owners.size() <= kListed) {
      out += fmt::format("{}  {}\n", std::string(name_width, ' '), tools::list_parts(owners));
    }
  }
  return out + "each column shows the rank that holds it (0-9, a-z, A-Z, then again from 0)\n";
}

std::string tags_text(const Description& description) {
  Table table({{""}, {"tag"}, {"step", Align::Right}, {"format"}, {"saved"}, {"note"}});
  for (const tools::Description::Tag& entry : description.tags) {
    table.add(
        {description.latest == entry.tag ? "*" : "", entry.tag,
         entry.problem.empty() && entry.step >= 0 ? std::to_string(entry.step) : "?", entry.format,
         entry.saved_unix_seconds == 0 ? "" : time_text(entry.saved_unix_seconds), entry.problem});
  }
  return table.empty() ? "no tags\n" : table.text();
}

}  // namespace unishard::cli
