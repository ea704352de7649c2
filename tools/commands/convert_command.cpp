// convert, and reshard of what is not native: any format into any other.
#include "unishard/format/error.hpp"
#include "unishard/format/text.hpp"

#include "commands/convert_run.hpp"
#include "support/machine.hpp"
#include "support/size_text.hpp"
#include "team/team_observer.hpp"
#include "views/terminal.hpp"
#include "workflows/input_check.hpp"
#include "workflows/model_config.hpp"
#include "workflows/native_folder.hpp"
#include "workflows/shared_output.hpp"
#include "workflows/side_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace unishard::cli {
namespace {

using converters::OutputShape;

struct ConvertRequest {
  std::string input;
  std::string output;
  std::optional<std::string> tag;
  std::string to;
  std::string out_tag;
  std::string dtype;
  std::vector<std::string> renames;
  std::string max_shard_size = "5GB";
  tools::ConvertOptions convert;
  ConvertRun run;
  Processes processes;
};

int run_in(tools::Team& team, const ConvertRequest& options) {
  ConvertRun job = options.run;
  job.input = options.input;
  job.tag = options.tag;
  job.convert = options.convert;
  job.convert.renames = tools::parse_renames(options.renames);
  job.convert.dtype = parse_dtype(options.dtype);
  job.output.format = options.to;
  job.output.path = options.output;
  job.output.tag = options.out_tag;
  if (converters::format_entry(options.to).shape == OutputShape::FileOrFolder &&
      !is_model_file(options.output)) {
    job.output.max_shard_bytes = tools::parse_bytes(options.max_shard_size, "--max_shard_size");
  }
  return run_convert(team, std::move(job));
}

int run(const ConvertRequest& options) {
  options.run.resources.apply();
  using Kind = Processes::Work::Kind;
  return options.processes.run({options.output, options.run.dry_run ? Kind::Whole : Kind::Writes},
                               [&](tools::Team& team) { return run_in(team, options); });
}

/// What a run writes besides bytes: printed before the first of them, and in the report.
struct Notes {
  std::vector<std::string> lines;

  void add(std::string_view from, const std::vector<std::string>& more) {
    for (const std::string& line : more) lines.push_back(fmt::format("{}: {}", from, line));
  }
};

/// Opens the input and finds its tag, of one checkpoint though a writer may move `latest`
/// meanwhile. Formats without tags leave `tag` empty.
std::unique_ptr<converters::Source> open_input(Storage& storage, const ConvertRun& job,
                                               std::string& tag) {
  constexpr int kTries = 20;
  for (int i = 1;; ++i) {
    tag = tools::tag_of(storage, job.input, job.tag).value_or("");
    auto source = converters::open_source(storage, job.input, job.tag);
    if (i == kTries || tools::tag_of(storage, job.input, job.tag).value_or("") == tag)
      return source;
  }
}

Json report_json(const ConvertRun& job, const converters::Source& source,
                 const tools::ConvertPlan& plan, const Notes& notes) {
  return {{"input", job.input},
          {"from", source.format()},
          {"output", job.output.path.string()},
          {"to", job.output.format},
          {"tag", job.output.tag},
          {"world_size", plan.target.world_size},
          {"stage", plan.target.stage},
          {"tensors", plan.target.tensors.size()},
          {"bytes", plan.target.stored_bytes()},
          {"side_files", tools::names_of(job.output.side_files)},
          {"left_out", notes.lines}};
}

void print_notes(const Notes& notes) {
  for (const std::string& line : notes.lines) say("note: " + line);
}

void print_plan(const ConvertRun& job, const converters::Source& source,
                const tools::ConvertPlan& plan, const Notes& notes, const Json& report) {
  if (job.json) return print_json(report);
  std::string text = fmt::format(
      "{} {} -> {} {}: {} tensors, {}, {} ranks, stage {}", source.format(), job.input,
      job.output.format, job.output.path.string(), plan.target.tensors.size(),
      tools::format_bytes(plan.target.stored_bytes()), plan.target.world_size, plan.target.stage);
  text = printable(text) + "\n";
  for (const std::string& line : notes.lines) text += printable(line) + "\n";
  print(text);
}

/// Reads back what was written and compares it with what the sink was given; what it did not want,
/// because others derive it, with the source. Returns the labels that differ.
std::vector<std::string> check(tools::Team& team, const ConvertRun& job,
                               const converters::Source& source, const tools::ConvertPlan& plan,
                               const tools::WrittenOutput& output,
                               const TransferOptions& transfer) {
  const auto written =
      converters::open_source_as(posix_storage(), job.output.format, output.staged);
  const converters::Digests& digests = output.digests;
  Catalog expected;
  std::vector<std::size_t> from;
  for (std::size_t i = 0; i < digests.size(); ++i) {
    TensorInfo tensor = plan.target.tensors[i];
    const bool was_converted = tensor.dtype != source.catalog().tensors[plan.tensor_map[i]].dtype;
    if (!digests[i] && was_converted) continue;  // nobody has its bytes
    tensor.crc64 = digests[i];
    expected.tensors.push_back(std::move(tensor));
    from.push_back(plan.tensor_map[i]);
  }
  tools::add_digests(source, from, transfer, team, expected);
  tools::verify_reads_together(team, source, transfer);
  return tools::differing(expected, tools::with_digests(*written, transfer, team));
}

}  // namespace

void print_side_files(const converters::SideFiles& files) {
  if (!files.empty()) say(fmt::format("side files: {}", fmt::join(tools::names_of(files), ", ")));
}

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const auto& entry : converters::known_formats()) names.emplace_back(entry.name);
  return names;
}

std::vector<std::string> sharded_format_names() {
  std::vector<std::string> names = format_names();
  std::erase_if(names, [](const std::string& name) {
    const OutputShape shape = converters::format_entry(name).shape;
    return shape != OutputShape::Tags && shape != OutputShape::Folder;
  });
  return names;
}

bool is_model_file(const Path& path) {
  constexpr std::array<std::string_view, 7> kFiles = {".safetensors", ".bin", ".pt",  ".pth",
                                                      ".ckpt",        ".h5",  ".hdf5"};
  return std::ranges::count(kFiles, path.extension().string()) > 0;
}

void ConvertRun::add_to(CLI::App& command) {
  command.add_flag("--dry-run,--dry_run", dry_run,
                   "Print what would be written and what would not arrive");
  command.add_flag("--strict", strict, "Fail when anything of the input cannot be expressed");
  command.add_flag("!--no-check,!--no_check", check, "Do not read the result back and compare it");
  add_no_check_input(command, check_input);
  command.add_flag("--json", json, "Report as JSON");
  resources.add_to(command);
}

int run_convert(tools::Team& team, ConvertRun job) {
  Storage& storage = posix_storage();
  const bool speaks = team.is_first();
  Progress progress(job.resources.quiet || !speaks);
  tools::TeamObserver observer(team, progress);
  std::string input_tag;
  const auto source = open_input(storage, job, input_tag);
  const TransferOptions transfer =
      job.resources.transfer(observer, source->catalog().tensors.size(), job.output.compression);
  const tools::InputChecking checking(*source, job.check_input);
  tools::ConvertPlan plan = tools::plan_convert(*source, job.convert);
  if (job.output.format.empty()) job.output.format = source->format();
  if (job.output.compression != Compression{} && job.output.format != "native")
    raise(ErrorCode::InvalidArgument, "--compress is for UniShard's own format",
          "add --to native, or leave --compress out; nothing was written");
  if (job.output.tag.empty()) job.output.tag = team.gather(input_tag).front();
  if (job.output.tag.empty()) job.output.tag = fmt::format("global_step{}", plan.target.step);
  checking.mark(plan.target, job.output);
  Notes notes;
  if (job.output.max_shard_bytes != 0) {
    std::vector<std::string> unwritten;
    job.output.side_files =
        tools::model_side_files(job.input, source->catalog(), plan.target, unwritten);
    notes.add("left out", unwritten);
  }
  const bool has_tags = converters::format_entry(job.output.format).shape == OutputShape::Tags;
  tools::require_outside_checkpoints(storage, job.output.path, has_tags);
  tools::require_space(job.output.path, plan.target.stored_bytes());
  catch_interrupts();  // before anything is created
  auto shared = tools::make_shared_sink(team, plan.target, [&](const converters::WorkSplit& share) {
    job.output.share = share;
    return converters::make_sink(storage, job.output, plan.target);
  });
  notes.add("not read", source->notes());
  notes.add("left out", plan.notes);
  notes.add("cannot be written", shared.sink->notes());
  if (job.strict && !notes.lines.empty()) {
    if (speaks) print_notes(notes);
    raise(ErrorCode::Unsupported,
          fmt::format("{} of what {} holds would not arrive in the format {}", notes.lines.size(),
                      job.input, job.output.format),
          "leave out --strict to convert the rest; nothing was written");
  }
  Json report = report_json(job, *source, plan, notes);
  if (job.dry_run) {
    shared.sink.reset();
    print_plan(job, *source, plan, notes, report);
    return 0;
  }
  if (!job.json && speaks) print_notes(notes);
  if (!job.json && speaks && !job.resources.quiet) print_side_files(job.output.side_files);
  if (speaks && !checking.note().empty()) say("note: " + checking.note());
  if (shared.is_one_process_work() && speaks && !job.resources.quiet)
    say(fmt::format("note: {}", kOneProcessNote));
  progress.begin("convert", shared.bytes[team.rank()]);
  const tools::WrittenOutput written = tools::write_together(
      team, {.source = source.get(), .target = &plan.target, .tensor_map = plan.tensor_map},
      *shared.sink, transfer, job.check ? tools::WantDigests::Yes : tools::WantDigests::No);
  progress.end();
  checking.report(written.input, report);
  std::vector<std::string> different;
  if (job.check) {
    progress.begin("check", plan.target.stored_bytes() / team.size());
    different = check(team, job, *source, plan, written, transfer);
    progress.end();
    report["checked"] = true;
    report["different"] = different;
  }
  if (different.empty()) tools::publish_together(team, *shared.sink);
  if (!speaks) return 0;
  if (job.json) {
    print_json(report);
  } else if (!job.resources.quiet) {
    say(fmt::format(
        "{}: {} tensors, {}{}", job.output.path.string(), plan.target.tensors.size(),
        tools::format_bytes(plan.target.stored_bytes()),
        job.check && different.empty() ? ", " + checking.describe_equal(written.input) : ""));
  }
  for (const std::string& label : different) say("DIFFERENT: " + label);
  if (different.empty()) return 0;
  say("nothing was published; suspect the memory or the disk of this machine");
  return 1;
}

void add_convert(CLI::App& app, Action& action) {
  const auto options = std::make_shared<ConvertRequest>();
  CLI::App* command = add_verb(app, action, "convert",
                               "Rewrite a checkpoint of any format in another one", options, run);
  command
      ->add_option(
          "in", options->input,
          "A checkpoint: DeepSpeed, DCP/FSDP, torch.save, safetensors, Hugging Face, HDF5 or "
          "UniShard")
      ->required();
  command->add_option("out", options->output, "Folder or file to write; nothing is overwritten")
      ->required();
  command->add_option("--to", options->to, "Format to write")
      ->required()
      ->check(CLI::IsMember(format_names()));
  add_compress(*command, options->run.output.compression);
  add_tag(*command, options->tag);
  command->add_option("--out-tag,--out_tag", options->out_tag,
                      "Tag to write (default: the input's, else global_step<N>)");
  command->add_option("-w,--world-size,--world_size", options->convert.world_size,
                      "Ranks of the result (default: the input's)");
  command
      ->add_option("-s,--stage", options->convert.stage,
                   "ZeRO stage of the result, 0 to 3 (default: the input's)")
      ->check(CLI::Range(0, 3));
  command
      ->add_option("--dtype", options->dtype,
                   "Type of the weights (not of fp32 masters and optimizer states)")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command->add_option("--only", options->convert.only,
                      "Only parameters that match a shell pattern, such as 'h.0.*'");
  command->add_option(
      "--rename", options->renames,
      "FROM=TO: a regular expression and what its matches in names become; @FILE: one rule a line");
  command->add_flag("--weights-only,--weights_only", options->convert.weights_only,
                    "Only the model: fp32 masters where there are, else weights, and buffers");
  command
      ->add_option("--max_shard_size,--max-shard-size", options->max_shard_size,
                   "Largest file of a model folder")
      ->capture_default_str();
  options->processes.add_to(*command);
  options->run.add_to(*command);
  command->footer(
      "What one format holds and the other cannot express is listed; --strict makes it an error.\n"
      "Examples:\n"
      "  unishard convert ds_run native_run --to native\n"
      "  unishard convert ds_run fsdp_run --to dcp -w 16\n"
      "  srun -n 8 unishard convert ds_run fsdp_run --to dcp -w 16\n"
      "  unishard convert checkpoint-500 model/ --to safetensors --weights-only --dtype bf16\n"
      "  unishard convert model.safetensors model.h5 --to hdf5\n"
      "  unishard convert model.pt model.safetensors --to safetensors --rename '^module\\.='\n");
}

}  // namespace unishard::cli
