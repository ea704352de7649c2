#include "commands/convert_run.hpp"
#include "support/machine.hpp"
#include "team/team_observer.hpp"
#include "views/conversion_view.hpp"
#include "views/reshard_view.hpp"
#include "views/terminal.hpp"
#include "workflows/native_folder.hpp"
#include "workflows/reshard.hpp"

#include <numeric>

namespace unishard::cli {
namespace {

struct ReshardRequest {
  ConvertRun job;  ///< the whole of it where the input or the output is not native
  std::string output;
  Processes processes;
};

void print_plan(const ConvertRun& job, const CheckpointReader& source,
                const tools::ReshardPlan& plan) {
  const ReshardSurroundings around{
      .memory_bytes = job.resources.memory_bytes(),
      .free_bytes = tools::free_bytes(job.output.path),
      .source_shards = static_cast<std::uint32_t>(source.shards().size())};
  if (job.json) {
    print_json(reshard_json(plan, around));
  } else {
    print(reshard_text(plan, around));
  }
}

void report(const ConvertRun& job, const CheckpointReader& source,
            const tools::Conversion& conversion, const tools::ConversionResult& result,
            std::uint64_t payload_bytes) {
  const Catalog& target = conversion.plan().target;
  const Resharded done{.input = source.folder(),
                       .output = job.output.path / source.manifest().tag,
                       .identity_in = identity(target).value_or("unknown"),
                       .identity_out = result.identity.value_or("unknown"),
                       .is_equal = result.different.empty(),
                       .world_size = target.world_size,
                       .stage = target.stage,
                       .payload_bytes = payload_bytes};
  if (job.json) {
    print_json(resharded_json(done));
  } else {
    print(resharded_text(done));
  }
  say_different(result.different);
}

int run_native(tools::Team& team, const ConvertRun& job) {
  const std::shared_ptr<const CheckpointReader> input =
      tools::open_native_checkpoint(posix_storage(), job.input, job.tag);
  tools::ReshardPlan plan = tools::plan_reshard(
      *input, {.world_size = job.convert.world_size.value_or(0), .stage = job.convert.stage});
  if (job.dry_run) {
    print_plan(job, *input, plan);
    return 0;
  }
  const bool speaks = team.is_first();
  Progress progress(job.resources.quiet || !speaks);
  tools::TeamObserver observer(team, progress);
  const std::size_t tensors = plan.target.tensors.size();
  const TransferOptions transfer =
      job.resources.transfer(observer, tensors, job.output.compression);
  std::vector<std::size_t> same(tensors);
  std::iota(same.begin(), same.end(), std::size_t{0});
  const auto source = converters::make_native_source(input);
  converters::Output output = job.output;
  output.format = "native";
  output.tag = input->manifest().tag;
  catch_interrupts();  // before anything is created
  tools::Conversion conversion(team, *source,
                               {.target = std::move(plan.target),
                                .tensor_map = std::move(same),
                                .disk_bytes = plan.disk_bytes},
                               {.verb = "reshard",
                                .input = job.input,
                                .output = std::move(output),
                                .check_input = job.check_input,
                                .read_back = tools::ReadBack::Recorded});
  if (speaks && !conversion.checking().note().empty()) say_notes({conversion.checking().note()});
  const tools::ConversionResult result = conversion.run(transfer);
  if (speaks && !job.resources.quiet)
    say("resharded " + progress.summary(conversion.shared().total_bytes()));
  if (speaks) report(job, *input, conversion, result, plan.payload_bytes);
  return result.different.empty() ? 0 : 1;
}

int run_in(tools::Team& team, const ConvertRun& job) {
  const std::string format = converters::probe(posix_storage(), job.input).format;
  const bool to_native = job.output.format.empty() || job.output.format == "native";
  const bool is_native = format.empty() || (format == "native" && to_native);
  return is_native ? run_native(team, job) : job.run(team);
}

int run(const ReshardRequest& options) {
  ConvertRun job = options.job;
  job.resources.apply();
  job.output.path = options.output;
  using Kind = Processes::Work::Kind;
  return options.processes.run({job.output.path, job.dry_run ? Kind::Whole : Kind::Writes},
                               [&](tools::Team& team) { return run_in(team, job); });
}

}  // namespace

void add_reshard(CLI::App& app, Action& action) {
  const auto options = std::make_shared<ReshardRequest>();
  ConvertRun& job = options->job;
  CLI::App* command = add_verb(
      app, action, "reshard", "Rewrite a checkpoint for another world size or stage", options, run);
  command->add_option("in", job.input, kCheckpointHelp)->required();
  command
      ->add_option("out", options->output,
                   "Folder to write <tag> and `latest` to; nothing is overwritten")
      ->required();
  command
      ->add_option("-w,--world-size,--world_size", job.convert.world_size,
                   "Ranks of the new checkpoint")
      ->required();
  command->add_option("-s,--stage", job.convert.stage, "ZeRO stage, 0 to 3 (default: as it is)");
  add_to_format(*command, job.output.format, "Format to write (default: the input's)", true);
  add_compress(*command, job.output.compression);
  add_tag(*command, job.tag);
  command->add_flag("--dry-run,--dry_run", job.dry_run, "Print what would be read and written");
  command->add_flag("!--no-check,!--no_check", job.check,
                    "Do not read the result back and compare it (formats other than UniShard's, "
                    "which has checksums of its own)");
  add_no_check_input(*command, job.check_input);
  command->add_flag("--json", job.json, "Result or plan as JSON");
  options->processes.add_to(*command);
  job.resources.add_to(*command);
  command->footer(
      "UniShard checkpoints load into any world size without this; it is for placing files on "
      "nodes.\n"
      "Examples:\n"
      "  unishard reshard runs/gpt runs/gpt-16 --world-size 16\n"
      "  unishard reshard runs/gpt/global_step500 out -w 4 -s 3 --dry-run\n"
      "  unishard reshard deepspeed_run deepspeed_run_8 -w 8 -s 3\n"
      "  mpirun -n 8 unishard reshard runs/gpt runs/gpt-64 -w 64 --memory-limit 512MiB\n");
}

}  // namespace unishard::cli
