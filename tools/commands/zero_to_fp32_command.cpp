#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"

#include "commands/convert_run.hpp"
#include "support/machine.hpp"
#include "support/size_text.hpp"
#include "team/team_observer.hpp"
#include "views/terminal.hpp"
#include "workflows/consolidate.hpp"
#include "workflows/input_check.hpp"
#include "workflows/model_config.hpp"
#include "workflows/native_folder.hpp"
#include "workflows/shared_output.hpp"
#include "workflows/side_files.hpp"

#include <fmt/format.h>

namespace unishard::cli {
namespace {

struct ZeroToFp32Request {
  std::string checkpoint;
  std::string output;
  std::optional<std::string> tag;
  std::string max_shard_size = "5GB";
  std::string dtype;
  bool safe_serialization = false;
  bool exclude_frozen = false;
  bool debug = false;
  bool json = false;
  bool check_input = true;
  Processes processes;
  Resources resources;
};

void print_tensors(const tools::ConsolidatePlan& plan, const Catalog& source) {
  for (std::size_t i = 0; i < plan.target.tensors.size(); ++i) {
    const TensorInfo& from = source.tensors[plan.tensor_map[i]];
    say(fmt::format("{} {} -> {}", from.label(), name_of(from.dtype),
                    name_of(plan.target.tensors[i].dtype)));
  }
}

/// The output's name chooses the format.
std::unique_ptr<converters::Sink> make_model_sink(Storage& storage, const Path& output,
                                                  const tools::ConsolidatePlan& plan,
                                                  converters::SafetensorsOptions model,
                                                  const converters::WorkSplit& share) {
  const Path kind = is_model_file(output) ? output.extension() : "";
  if (kind == ".h5" || kind == ".hdf5")
    return converters::make_hdf5_sink(storage, output, plan.target, share);
  if (kind == "" || kind == ".safetensors")
    return converters::make_safetensors_sink(storage, output, plan.target, std::move(model), share);
  return converters::make_torch_sink(storage, output, plan.target, {}, share);
}

/// HDF5 links them and torch.save shares their storage; safetensors has one name per tensor.
bool keeps_aliases(const Path& output) {
  return is_model_file(output) && output.extension() != ".safetensors";
}

int run_in(tools::Team& team, const ZeroToFp32Request& options) {
  Storage& storage = posix_storage();
  const Path output = options.output;
  const bool is_file = is_model_file(output);
  const std::uint64_t max_shard_bytes =
      is_file ? 0 : tools::parse_bytes(options.max_shard_size, "--max_shard_size");
  const bool speaks = team.is_first();
  Progress progress(options.resources.quiet || !speaks);
  tools::TeamObserver observer(team, progress);
  const auto source = converters::open_source(storage, options.checkpoint, options.tag);
  const TransferOptions transfer =
      options.resources.transfer(observer, source->catalog().tensors.size());
  const tools::InputChecking checking(*source, options.check_input);
  tools::ConsolidatePlan plan = tools::plan_consolidate(
      *source, {.dtype = parse_dtype(options.dtype), .exclude_frozen = options.exclude_frozen});
  if (checking.is_ignored()) {
    plan.metadata.emplace_back(tools::kUncheckedMetadata, "true");
    if (output.extension() == ".h5" || output.extension() == ".hdf5")
      plan.target.producer[tools::kUncheckedInput] = true;
  }
  if (options.debug && speaks) print_tensors(plan, source->catalog());
  const std::uint64_t bytes = plan.target.stored_bytes();
  tools::require_outside_checkpoints(storage, output, false);
  tools::require_space(output, bytes);
  catch_interrupts();  // before anything is created
  converters::SideFiles side_files;
  std::vector<std::string> notes;
  if (!is_file) {
    side_files = tools::model_side_files(options.checkpoint, source->catalog(), plan.target, notes);
    for (std::string& note : notes) note = "left out: " + note;
  }
  const auto shared =
      tools::make_shared_sink(team, plan.target, [&](const converters::WorkSplit& share) {
        return make_model_sink(storage, output, plan, {max_shard_bytes, plan.metadata, side_files},
                               share);
      });
  if (!checking.note().empty()) notes.push_back(checking.note());
  if (shared.is_one_process_work()) notes.emplace_back(kOneProcessNote);
  if (speaks && !options.json && !options.resources.quiet) {
    for (const std::string& note : notes) say("note: " + note);
    print_side_files(side_files);
  }
  progress.begin("zero_to_fp32", shared.bytes[team.rank()]);
  const tools::WrittenOutput written = tools::write_together(
      team, {.source = source.get(), .target = &plan.target, .tensor_map = plan.tensor_map},
      *shared.sink, transfer);
  tools::publish_together(team, *shared.sink);
  progress.end();
  if (!speaks) return 0;
  if (options.json) {
    Json report = {{"output", output.string()},
                   {"tensors", plan.target.tensors.size()},
                   {"bytes", bytes},
                   {"side_files", tools::names_of(side_files)},
                   {"notes", notes},
                   {"aliases_left_out", keeps_aliases(output) ? 0 : plan.target.aliases.size()},
                   {"frozen_left_out", plan.frozen_left_out}};
    checking.report(written.input, report);
    print_json(report);
  } else if (!options.resources.quiet) {
    say(fmt::format("{}: {} tensors, {}", output.string(), plan.target.tensors.size(),
                    progress.summary(shared.total_bytes())));
  }
  return 0;
}

int run(const ZeroToFp32Request& options) {
  return options.processes.run({options.output},
                               [&](tools::Team& team) { return run_in(team, options); });
}

}  // namespace

void add_zero_to_fp32(CLI::App& app, Action& action) {
  const auto options = std::make_shared<ZeroToFp32Request>();
  CLI::App* command =
      add_verb(app, action, "zero_to_fp32",
               "Write the model's weights as one fp32 file or model folder", options, run);
  command
      ->add_option("checkpoint_dir", options->checkpoint,
                   "Folder with `latest`, one tag's folder, or a checkpoint of any other format")
      ->required();
  command
      ->add_option(
          "output", options->output,
          "A .safetensors, .bin, .pt, .pth or .h5 file, or a folder for a Hugging Face model")
      ->required();
  add_tag(*command, options->tag);
  command
      ->add_option("--max_shard_size,--max-shard-size", options->max_shard_size,
                   "Largest file of a folder")
      ->capture_default_str();
  command->add_flag("--safe_serialization,--safe-serialization", options->safe_serialization,
                    "Accepted as DeepSpeed does; a folder is safetensors in any case");
  command->add_flag("--exclude_frozen_parameters,--exclude-frozen-parameters",
                    options->exclude_frozen, "Leave frozen parameters out");
  command
      ->add_option("--dtype", options->dtype,
                   "Type of all floating tensors (default: fp32, frozen parameters keep theirs)")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command->add_flag("-d,--debug", options->debug, "List the tensors on standard error");
  add_no_check_input(*command, options->check_input);
  command->add_flag("--json", options->json, "Summary as JSON");
  options->processes.add_to(*command);
  options->resources.add_to(*command);
  command->footer(
      "A folder gets the config.json that lies beside the checkpoint, else the one that it holds.\n"
      "Examples:\n"
      "  unishard zero_to_fp32 runs/gpt model/\n"
      "  unishard zero_to_fp32 . pytorch_model.bin        (inside a DeepSpeed folder)\n"
      "  unishard zero_to_fp32 runs/gpt model.safetensors -t global_step500 --dtype bf16\n"
      "  unishard zero_to_fp32 runs/gpt model/ --procs 4\n");
}

}  // namespace unishard::cli
