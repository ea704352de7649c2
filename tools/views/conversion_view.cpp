#include "views/conversion_view.hpp"

#include "unishard/format/text.hpp"

#include "support/size_text.hpp"
#include "views/terminal.hpp"
#include "workflows/side_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace unishard::cli {

Json conversion_json(const tools::Conversion& conversion, const converters::Source& source) {
  const converters::Output& output = conversion.options().output;
  const Catalog& target = conversion.plan().target;
  const tools::WrittenSize written = conversion.written();
  return {{"input", conversion.options().input.string()},
          {"from", source.format()},
          {"output", output.path.string()},
          {"to", output.format},
          {"tag", output.tag},
          {"world_size", target.world_size},
          {"stage", target.stage},
          {"tensors", written.tensors},
          {"bytes", written.bytes},
          {"side_files", tools::names_of(output.side_files)},
          {"missing", conversion.notes().missing},
          {"losses", tools::losses_json(conversion.notes().lost)},
          {"left_out", conversion.notes().losses()},
          {"remarks", conversion.notes().remarks}};
}

std::string conversion_text(const tools::Conversion& conversion, const converters::Source& source) {
  const converters::Output& output = conversion.options().output;
  const Catalog& target = conversion.plan().target;
  const tools::WrittenSize written = conversion.written();
  std::string text = printable(fmt::format(
      "{} {} -> {} {}: {} tensors, {}, {} ranks, stage {}", source.format(),
      conversion.options().input.string(), output.format, output.path.string(), written.tensors,
      tools::format_bytes(written.bytes), target.world_size, target.stage));
  text += '\n';
  for (const auto& lines : {conversion.notes().losses(), conversion.notes().remarks}) {
    for (const std::string& line : lines) {
      text += printable(line);
      text += '\n';
    }
  }
  return text;
}

std::vector<std::string> consolidation_notes(const tools::Conversion& conversion) {
  // That an optimizer or a schedule is left out is what the verb is for (LossRules), and how its
  // states were named is of no concern. Every doubt is said: the states can tell of a lost weight.
  std::vector<std::string> notes = conversion.notes().not_read;
  for (const std::string& note : conversion.notes().left_out) notes.push_back("left out: " + note);
  for (std::string& line : lines_of(conversion.notes().lost)) notes.push_back(std::move(line));
  for (const auto* remarks : {&conversion.notes().of_weights, &conversion.plan().remarks})
    notes.insert(notes.end(), remarks->begin(), remarks->end());
  if (const std::size_t count = conversion.options().dequantized; count > 0)
    notes.push_back(fmt::format("{} quantized weights are dequantized", count));
  if (const std::size_t count = conversion.options().kept_quantized; count > 0) {
    notes.push_back(
        fmt::format("{} frozen weights stay quantized, as the run stored them, with their scales "
                    "beside them; --dtype dequantizes them",
                    count));
  }
  if (auto remark = tools::remark_on_second_names(conversion.plan().target,
                                                  conversion.options().output.format))
    notes.push_back(std::move(*remark));
  for (const std::string_view note :
       {std::string_view(conversion.checking().note()), conversion.one_process_note()}) {
    if (!note.empty()) notes.emplace_back(note);
  }
  return notes;
}

Json consolidation_json(const tools::Conversion& conversion,
                        const tools::ConversionResult& result) {
  const Catalog& target = conversion.plan().target;
  const tools::WrittenSize written = conversion.written();
  const converters::Output& output = conversion.options().output;
  // HDF5 links aliases and torch.save shares their storage; safetensors has one name per tensor.
  const bool keeps_aliases = output.format != "safetensors";
  Json report = {{"output", output.path.string()},
                 {"tensors", written.tensors},
                 {"bytes", written.bytes},
                 {"side_files", tools::names_of(output.side_files)},
                 {"missing", conversion.notes().missing},
                 {"losses", tools::losses_json(conversion.notes().lost)},
                 {"notes", consolidation_notes(conversion)},
                 {"aliases_left_out", keeps_aliases ? 0 : target.aliases.size()},
                 {"frozen_left_out", conversion.plan().frozen_left_out}};
  report["overflowed"] = result.overflowed;
  conversion.checking().report(result.input, report);
  return report;
}

std::string missing_text(const tools::Conversion& conversion) {
  const std::size_t missing = conversion.notes().missing;
  return missing == 0 ? "" : fmt::format("; {} MISSING, named above", missing);
}

std::string consolidated_text(const tools::Conversion& conversion, const std::string& summary) {
  return fmt::format("{}: {} tensors, {}{}", conversion.options().output.path.string(),
                     conversion.written().tensors, summary, missing_text(conversion));
}

void say_tensors(const tools::ConversionPlan& plan, const Catalog& source) {
  for (std::size_t i = 0; i < plan.target.tensors.size(); ++i) {
    const TensorInfo& from = source.tensors[plan.tensor_map[i]];
    say(fmt::format("{} {} -> {}", from.label(), name_of(from.dtype),
                    name_of(plan.target.tensors[i].dtype)));
  }
}

void say_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) say("note: " + note);
}

void say_side_files(const converters::SideFiles& files) {
  if (!files.empty()) say(fmt::format("side files: {}", fmt::join(tools::names_of(files), ", ")));
}

void say_before(const tools::Conversion& conversion, bool is_json, bool is_quiet) {
  if (!is_json) {
    say_notes(conversion.notes().losses());
    say_notes(conversion.notes().remarks);
  }
  if (!is_json && !is_quiet) say_side_files(conversion.options().output.side_files);
  if (!conversion.checking().note().empty()) say_notes({conversion.checking().note()});
  if (!is_quiet && !conversion.one_process_note().empty())
    say_notes({std::string(conversion.one_process_note())});
}

void say_overflow(const tools::ConversionResult& result) {
  if (!result.overflowed.empty()) say_notes({tools::describe_overflow(result.overflowed)});
}

void say_different(const std::vector<std::string>& labels) {
  for (const std::string& label : labels) say("DIFFERENT: " + label);
  if (labels.empty()) return;
  say("nothing was published: the result was not read back as it was written. Where a second run "
      "says the same, this is an error of UniShard, which you may report; else suspect the memory "
      "or the disk of this machine");
}

}  // namespace unishard::cli
