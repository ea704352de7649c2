#include "unishard/converters/like_source.hpp"

#include "commands/command.hpp"
#include "commands/convert_run.hpp"
#include "team/team_observer.hpp"
#include "views/conversion_view.hpp"
#include "views/terminal.hpp"
#include "workflows/dequantized_input.hpp"
#include "workflows/hub_named_input.hpp"
#include "workflows/llama_input.hpp"

namespace unishard::cli {
namespace {

struct ZeroToFp32Request {
  std::string checkpoint;
  std::string output;
  std::optional<std::string> tag;
  PartOptions part;
  std::string max_shard_size;
  std::string dtype;
  bool safe_serialization = false;
  bool exclude_frozen = false;
  bool allows_missing = false;
  NameOptions names;
  std::string merge_rules;
  bool debug = false;
  bool json = false;
  bool check_input = true;
  Processes processes;
  Resources resources;
};

int run_in(tools::Team& team, const ZeroToFp32Request& options) {
  const bool speaks = team.is_first();
  Progress progress(options.resources.quiet || !speaks);
  tools::TeamObserver observer(team, progress);
  using converters::FrozenWeights;
  const std::optional<DType> dtype = parse_dtype(options.dtype);
  const tools::Rules given = options.names.read(options.merge_rules);
  const converters::OpenOptions open{
      .tag = options.tag, .from_rank = options.part.from_rank, .merge_rules = given.cuts};
  auto opened = options.part.like.empty()
                    ? converters::open_source(posix_storage(), options.checkpoint, open)
                    : converters::open_source_like(posix_storage(), options.checkpoint,
                                                   options.part.like, open);
  options.part.check(*opened);
  auto [numbers, dequantized, kept, incomplete] =
      tools::dequantized_input(std::move(opened), options.checkpoint,
                               {.frozen = dtype ? FrozenWeights::Dequantize : FrozenWeights::Keep,
                                .check_input = options.check_input});
  if (options.exclude_frozen) incomplete.clear();
  const std::vector<std::string> without_value =
      tools::incomplete_kept(incomplete, options.checkpoint, options.allows_missing);
  numbers = tools::llama_input(std::move(numbers), options.checkpoint, given.layout);
  const auto [source, experts, remark] =
      options.names.keeps_module_names
          ? converters::HubNamed{.source = std::move(numbers)}
          : tools::hub_named_input(std::move(numbers), options.checkpoint);
  const TransferOptions transfer =
      options.resources.transfer(observer, source->catalog().tensors.size());
  const tools::LossRules rules{.wanted = tools::Wanted::Model,
                               .excludes_frozen = options.exclude_frozen,
                               .allows_missing = options.allows_missing};
  tools::losses_to_name(source->losses(), rules, options.checkpoint);  // before an empty plan
  tools::ConversionPlan plan =
      tools::plan_consolidate(*source, {.dtype = dtype,
                                        .exclude_frozen = options.exclude_frozen,
                                        .layout = given.layout,
                                        .renames = given.renames});
  if (experts > 0) plan.remarks.push_back(remark);
  plan.remarks.insert(plan.remarks.end(), without_value.begin(), without_value.end());
  converters::Output output = tools::model_output(tools::model_format(options.output),
                                                  options.output, options.max_shard_size);
  if (options.debug && speaks) say_tensors(plan, source->catalog());
  output.metadata = plan.metadata;
  catch_interrupts();  // before anything is created
  const bool has_all_scales = !options.exclude_frozen && without_value.empty();
  tools::Conversion conversion(team, *source, std::move(plan),
                               {.verb = "zero_to_fp32",
                                .input = options.checkpoint,
                                .output = std::move(output),
                                .check_input = options.check_input,
                                .read_back = tools::ReadBack::None,
                                .losses = rules,
                                .dequantized = dequantized,
                                .kept_quantized = has_all_scales ? kept : 0});
  const bool reports = speaks && !options.json && !options.resources.quiet;
  if (speaks && !options.json) say_notes(consolidation_notes(conversion));
  if (reports) say_side_files(conversion.options().output.side_files);
  const tools::ConversionResult result = conversion.run(transfer);
  if (speaks) options.names.save(given, conversion.plan().renames, source->cut_rules());
  if (speaks && !options.json) say_overflow(result);
  if (speaks && options.json) print_json(consolidation_json(conversion, result));
  if (reports)
    say(consolidated_text(conversion, progress.summary(conversion.shared().total_bytes())));
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
  add_checkpoint(*command, "checkpoint_dir", options->checkpoint);
  command
      ->add_option("output", options->output,
                   "A .safetensors, .bin, .pt, .pth, .h5, .npz or .gguf file, "
                   "or a folder for a Hugging Face model")
      ->required();
  add_tag(*command, options->tag);
  options->part.add_to(*command);
  add_max_shard_size(*command, options->max_shard_size);
  command->add_flag("--safe_serialization,--safe-serialization", options->safe_serialization,
                    "Accepted as DeepSpeed does; a folder is safetensors in any case");
  command->add_flag("--exclude_frozen_parameters,--exclude-frozen-parameters",
                    options->exclude_frozen, "Leave frozen parameters out");
  command
      ->add_option("--dtype", options->dtype,
                   "Type of all floating tensors (default: fp32, frozen parameters keep theirs)")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command->add_flag("-d,--debug", options->debug, "List the tensors on standard error");
  options->names.add_to(*command);
  add_merge_rules(*command, options->merge_rules);
  add_allow_missing(*command, options->allows_missing);
  add_no_check_input(*command, options->check_input);
  command->add_flag("--json", options->json, "Summary as JSON");
  options->processes.add_to(*command);
  options->resources.add_to(*command);
  command->footer(
      "Where config.json says so, experts get the names of the hub's files, one tensor for each.\n"
      "A folder gets the config.json that lies beside the checkpoint, else the one that it holds.\n"
      "Quantized weights are dequantized; frozen ones of a training run only with --dtype.\n"
      "Examples:\n"
      "  unishard zero_to_fp32 runs/gpt model/\n"
      "  unishard zero_to_fp32 . pytorch_model.bin        (inside a DeepSpeed folder)\n"
      "  unishard zero_to_fp32 runs/gpt model.safetensors -t global_step500 --dtype bf16\n"
      "  unishard zero_to_fp32 runs/gpt model/ --procs 4\n"
      "  unishard zero_to_fp32 neox_run model/ --layout neox\n"
      "  unishard zero_to_fp32 dinov2_run model/ --like vitl.pth    (rank files of FSDP1)\n"
      "  unishard zero_to_fp32 Llama-2-13b model/ --layout llama     (consolidated.00.pth, ...)\n");
}

}  // namespace unishard::cli
