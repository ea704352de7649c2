#include "commands/convert_run.hpp"

#include "unishard/converters/cut_patterns.hpp"
#include "unishard/format/error.hpp"

#include "support/size_text.hpp"
#include "team/team_observer.hpp"
#include "views/conversion_view.hpp"
#include "views/terminal.hpp"
#include "workflows/dequantized_input.hpp"
#include "workflows/hub_named_input.hpp"
#include "workflows/llama_input.hpp"
#include "workflows/model_config.hpp"
#include "workflows/native_folder.hpp"
#include "workflows/run_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

namespace unishard::cli {
namespace {

using converters::OutputShape;

/// Upper bound on stages, and on tensor-parallel ranks.
constexpr std::uint32_t kModelRanks = 1u << 12;

/// Throws: InvalidArgument when `option` has a value that the format, which has no ranks, cannot
/// use.
void require_ranks(bool is_given, std::string_view option, std::string_view format) {
  const OutputShape shape = converters::format_entry(format).shape;
  if (!is_given || shape == OutputShape::Tags || shape == OutputShape::Folder) return;
  raise(ErrorCode::InvalidArgument,
        fmt::format("{} is for formats with ranks, and {} has none", option, format),
        fmt::format("leave {} out, or pass --to native, dcp or deepspeed; nothing was written",
                    option));
}

/// Reads "embed=0,7".
/// Throws: InvalidArgument.
converters::TiedLayers parse_tied_layers(std::string_view text) {
  const std::size_t equals = text.find('=');
  converters::TiedLayers tied{std::string(text.substr(0, equals)), {}};
  std::string_view numbers = equals == std::string_view::npos ? "" : text.substr(equals + 1);
  while (!numbers.empty()) {
    std::uint32_t layer = 0;
    const char* const end = numbers.data() + numbers.size();
    const auto [stop, error] = std::from_chars(numbers.data(), end, layer);
    const bool is_followed = stop != end && *stop == ',' && stop + 1 != end;
    if (error != std::errc() || (stop != end && !is_followed)) break;
    tied.layers.push_back(layer);
    if (stop == end) return tied;
    numbers.remove_prefix(static_cast<std::size_t>(stop + 1 - numbers.data()));
  }
  raise(ErrorCode::InvalidArgument, fmt::format("--tied-layers {}", quote(text)),
        "pass the key of the module and the layers that use it, such as embed=0,7");
}

/// What the job writes, with everything that the input decides.
converters::Output decide_output(const ConvertRun& job, const converters::Source& source,
                                 const std::string& input_tag) {
  converters::Output output = job.output;
  if (output.format.empty()) output.format = source.format();
  for (const std::string& text : job.tied_layers)
    output.parallel.tied.push_back(parse_tied_layers(text));
  if (output.compression != Compression{} && output.format != "native")
    raise(ErrorCode::InvalidArgument, "--compress is for UniShard's own format",
          "add --to native, or leave --compress out; nothing was written");
  require_dcp(output);
  require_ranks(job.convert.world_size.has_value(), "--world-size", output.format);
  require_ranks(job.convert.stage.has_value(), "--stage", output.format);
  job.require_parallel_format(output.format);
  if (!output.tag.empty() && converters::format_entry(output.format).shape != OutputShape::Tags) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("--out-tag is for formats with tags, and {} has none", output.format),
          "leave --out-tag out, or name the tag's folder as the output; nothing was written");
  }
  if (output.tag.empty()) output.tag = input_tag;
  if (output.tag.empty()) output.tag = fmt::format("global_step{}", source.catalog().step);
  return output;
}

/// Returns a line for each option that changes nothing in this result.
std::vector<std::string> idle_options(const ConvertRun& job, std::string_view format,
                                      bool is_part) {
  std::vector<std::string> lines;
  const auto say_no = [&](std::string_view option, std::string_view what) {
    lines.push_back(fmt::format("{} changes nothing: a checkpoint of the format {} has no {}",
                                option, format, what));
  };
  if (job.convert.stage && format != "native" && format != "deepspeed")
    say_no("--stage", "ZeRO stage");
  if (job.convert.world_size && (format == "trainer" || format == "accelerate"))
    say_no("--world-size", "ranks");
  if (job.part.may_be_part && !is_part)
    lines.emplace_back("--part changes nothing: the input is no part of a model");
  return lines;
}

void require_everything_arrives(const ConvertRun& job, const tools::Conversion& conversion) {
  const std::size_t count = conversion.notes().losses().size() - conversion.notes().asked_for;
  if (count == 0) return;
  raise(ErrorCode::Unsupported,
        fmt::format("{} of what {} holds would not arrive in the format {}", count,
                    job.input.string(), conversion.options().output.format),
        "leave out --strict to convert the rest; nothing was written");
}

void report(const ConvertRun& job, const tools::Conversion& conversion,
            const tools::ConversionResult& result, Json json) {
  if (job.json) {
    json["overflowed"] = result.overflowed;
    conversion.checking().report(result.input, json);
    if (job.check) {
      json["checked"] = true;
      json["different"] = result.different;
    }
    print_json(json);
  } else if (!job.resources.quiet) {
    const tools::WrittenSize written = conversion.written();
    const bool is_proven = job.check && result.different.empty();
    say(fmt::format("{}: {} tensors, {}{}{}", job.output.path.string(), written.tensors,
                    tools::format_bytes(written.bytes),
                    is_proven ? ", " + conversion.checking().describe_equal(result.input) : "",
                    missing_text(conversion)));
  }
  say_different(result.different);
}

struct OpenedInput {
  std::unique_ptr<converters::Source> source;
  std::string tag;
  bool cuts_result = false;  ///< the user's rules are of the result alone
};

OpenedInput open_with(const ConvertRun& job, const Json& rules) {
  auto [source, tag] = tools::open_tagged(posix_storage(), job.input,
                                          {.tag = job.tag,
                                           .from_rank = job.part.from_rank,
                                           .assume_model_order = job.assumes_model_order,
                                           .merge_rules = rules},
                                          job.part.like);
  return {std::move(source), std::move(tag)};
}

/// Returns whether the tensors of the input are whole without rules of the user's, and nothing
/// tells how ranks would cut them.
bool lacks_only_patterns(const converters::Source& source) {
  const Json& client = source.catalog().client_state;
  return !client.is_object() || !client.contains(converters::kCutPatterns);
}

/// Opens the input with the user's rules, or without them where only the result needs them.
OpenedInput open_input(const ConvertRun& job) {
  if (job.output.parallel.tensor && !job.rules.cuts.is_null()) {
    try {
      OpenedInput opened = open_with(job, nullptr);
      opened.cuts_result = lacks_only_patterns(*opened.source);
      if (opened.cuts_result) return opened;
    } catch (const Error&) {  // the rules are needed to read it, or it is opened again and refused
    }
  }
  return open_with(job, job.rules.cuts);
}

}  // namespace

void ConvertRun::add_to(CLI::App& command) {
  command.add_flag("--dry-run,--dry_run", dry_run,
                   "Print what would be written and what would not arrive");
  command.add_flag("--strict", strict, "Fail when anything of the input cannot be expressed");
  add_open_choices(command, allows_missing, assumes_model_order);
  add_merge_rules(command, merge_rules);
  add_no_check(command, check, "Do not read the result back and compare it");
  add_no_check_input(command, check_input);
  command.add_flag("--json", json, "Report as JSON");
  resources.add_to(command);
}

void ConvertRun::add_parallel_ranks(CLI::App& command) {
  command.add_option("--ep-size,--ep_size", convert.expert_ranks,
                     "Expert ranks of DeepSpeed's MoE layers (default: the input's); for "
                     "--to deepspeed");
  command
      .add_option(
          "--tensor", output.parallel.tensor,
          "Tensor-parallel ranks, two or more, which --world-size counts as well; the input, or "
          "--merge-rules, must tell how they cut the tensors; for --to deepspeed")
      ->check(CLI::Range(2u, kModelRanks));
  command
      .add_option("--vocab-multiple,--vocab_multiple", output.parallel.vocabulary_multiple,
                  "With --tensor: pad vocabularies to a multiple of this times the tensor-parallel "
                  "ranks, as Megatron's --make-vocab-size-divisible-by (default: 1)")
      ->check(CLI::Range(1u, 1u << 20));
  add_pipeline(command);
}

void ConvertRun::add_pipeline(CLI::App& command) {
  command
      .add_option("--pipeline", output.parallel.stages,
                  "Stages of a pipeline, which --world-size counts as well, for models with the "
                  "names of DeepSpeed's PipelineModule; the layers are divided as its "
                  "partition_method parameters does; for --to deepspeed")
      ->check(CLI::Range(1u, kModelRanks));
  command
      .add_option("--pipeline-parts,--pipeline_parts", output.parallel.parts,
                  "The first layer of each stage, then the number of layers, such as 0,4,8, for "
                  "runs that divide their layers in another way (DeepSpeed prints it)")
      ->allow_extra_args(false)
      ->delimiter(',');
  command
      .add_option("--tied-layers,--tied_layers", tied_layers,
                  "The layers of the pipeline that use a tied module, such as embed=0,7; "
                  "again for each tied module")
      ->allow_extra_args(false)
      ->type_name("KEY=LAYERS");
}

void ConvertRun::require_parallel_format(std::string_view format) const {
  const converters::ParallelRanks& ranks = output.parallel;
  const std::string_view given = convert.expert_ranks        ? "--ep-size"
                                 : ranks.tensor              ? "--tensor"
                                 : ranks.has_pipeline()      ? "--pipeline"
                                 : ranks.vocabulary_multiple ? "--vocab-multiple"
                                 : !tied_layers.empty()      ? "--tied-layers"
                                                             : "";
  if (given.empty()) return;
  if (format != "deepspeed") {
    raise(ErrorCode::InvalidArgument,
          fmt::format("{} is for DeepSpeed's own folders, and the result is {}", given, format),
          fmt::format("add --to deepspeed, or leave {} out; nothing was written", given));
  }
  if (ranks.vocabulary_multiple && !ranks.tensor)
    raise(ErrorCode::InvalidArgument, "--vocab-multiple is for tensor-parallel ranks",
          "add --tensor, or leave it out; nothing was written");
  if (!tied_layers.empty() && !ranks.has_pipeline())
    raise(ErrorCode::InvalidArgument, "--tied-layers is for pipelines",
          "add --pipeline, or leave it out; nothing was written");
}

int ConvertRun::run(tools::Team& team) const {
  const bool speaks = team.is_first();
  Progress progress(resources.quiet || !speaks);
  tools::TeamObserver observer(team, progress);
  auto [opened, own_tag, cuts_result] = open_input(*this);
  part.check(*opened);
  const bool is_part = opened->part_of().has_value();
  // Without another type, quantized weights are copied with their scales.
  converters::Dequantized numbers{.source = std::move(opened)};
  std::vector<std::string> without_value;
  if (convert.dtype) {
    numbers =
        tools::dequantized_input(std::move(numbers.source), input, {.check_input = check_input});
  } else {
    without_value = tools::remarks_on_incomplete(*numbers.source, input, check_input);
  }
  numbers.source = tools::llama_input(std::move(numbers.source), input, convert.layout);
  // A training goes on with the names of the modules.
  const auto [source, experts, remark] =
      convert.weights_only && !names.keeps_module_names
          ? tools::hub_named_input(std::move(numbers.source), input)
          : converters::HubNamed{.source = std::move(numbers.source)};
  const std::string input_tag = team.gather(own_tag).front();
  const TransferOptions transfer =
      resources.transfer(observer, source->catalog().tensors.size(), output.compression);
  const tools::LossRules losses{
      .wanted = convert.weights_only ? tools::Wanted::Model : tools::Wanted::Everything,
      .only = convert.only,
      .allows_missing = allows_missing};
  tools::losses_to_name(source->losses(), losses, input);  // before an empty plan
  catch_interrupts();                                      // before anything is created
  tools::ConvertOptions options = convert;
  if (cuts_result) options.cut_patterns = rules.cuts;
  tools::ConversionPlan plan = tools::plan_convert(*source, options);
  std::ranges::move(tools::remarks_on_parted(*source, input, plan, allows_missing),
                    std::back_inserter(plan.remarks));
  if (experts > 0) plan.remarks.push_back(remark);
  plan.remarks.insert(plan.remarks.end(), without_value.begin(), without_value.end());
  converters::Output target = decide_output(*this, *source, input_tag);
  if (target.parallel.tensor) {
    if (auto heads =
            tools::remark_on_heads(tools::config_folder(*source, input), *target.parallel.tensor))
      plan.remarks.push_back(std::move(*heads));
  }
  std::ranges::move(idle_options(*this, target.format, is_part), std::back_inserter(plan.remarks));
  tools::Conversion conversion(
      team, *source, std::move(plan),
      {.verb = "convert",
       .input = input,
       .output = std::move(target),
       .check_input = check_input,
       .read_back = check ? tools::ReadBack::Payload : tools::ReadBack::None,
       .may_be_fresh = may_be_fresh,
       .may_overflow = !strict,
       .losses = losses,
       .dequantized = numbers.weights});
  if (strict) {
    if (speaks) say_notes(conversion.notes().losses());
    require_everything_arrives(*this, conversion);
  }
  const Json json_report = conversion_json(conversion, *source);
  if (dry_run) {
    if (json) {
      print_json(json_report);
    } else {
      print(conversion_text(conversion, *source));
    }
    return 0;
  }
  if (speaks) say_before(conversion, json, resources.quiet);
  const tools::ConversionResult result = conversion.run(transfer);
  if (speaks) names.save(rules, conversion.plan().renames, source->cut_rules());
  if (speaks && !json) say_overflow(result);
  if (speaks) report(*this, conversion, result, json_report);
  return result.different.empty() ? 0 : 1;
}

CLI::Option* add_to_format(CLI::App& command, std::string& to, const std::string& help,
                           bool sharded_only) {
  std::vector<std::string> names;
  for (const converters::FormatEntry& entry : converters::known_formats()) {
    const bool is_sharded = entry.shape == OutputShape::Tags || entry.shape == OutputShape::Folder;
    if (is_sharded || !sharded_only) names.emplace_back(entry.name);
  }
  return command.add_option("--to", to, help)->check(CLI::IsMember(names));
}

void add_open_choices(CLI::App& command, bool& allows_missing, bool& assumes_model_order) {
  add_allow_missing(command, allows_missing);
  add_assume_model_order(command, assumes_model_order);
}

void add_assume_model_order(CLI::App& command, bool& assumes_model_order) {
  command.add_flag("--assume-model-order,--assume_model_order", assumes_model_order,
                   "Give an optimizer's numbered states to the parameters in the model's order, "
                   "also where another order fits their shapes");
}

void add_allow_missing(CLI::App& command, bool& allows_missing) {
  command.add_flag("--allow-missing,--allow_missing", allows_missing,
                   "Write the rest when weights cannot be read, and name and count them");
}

void add_fresh(CLI::App& command, bool& may_be_fresh) {
  command.add_flag(
      "--fresh", may_be_fresh,
      "Also write beside the checkpoints of another run; `latest` then names the result");
}

void add_dcp_layout(CLI::App& command, std::string& layout) {
  command
      .add_option("--dcp-layout,--dcp_layout", layout,
                  "Keys of a DCP folder (default: the input's, else model-optim)")
      ->check(CLI::IsMember(converters::dcp_key_layouts()));
}

void require_dcp(const converters::Output& output) {
  if (output.key_layout.empty() || output.format == "dcp") return;
  raise(ErrorCode::InvalidArgument, "--dcp-layout is for DCP folders",
        "add --to dcp, or leave --dcp-layout out; nothing was written");
}

}  // namespace unishard::cli
