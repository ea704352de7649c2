#include "unishard/format/error.hpp"

#include "commands/reshard_run.hpp"

namespace unishard::cli {
namespace {

struct ReshardRequest {
  ConvertRun job;  ///< the whole of it where the input or the output is not native
  std::string output;
  Processes processes;
};

int run_in(tools::Team& team, const ConvertRun& job) {
  const auto numbered = converters::find_numbered_checkpoint(posix_storage(), job.input, job.tag);
  const std::string format =
      converters::probe(posix_storage(), numbered.value_or(job.input)).format;
  const bool to_native = job.output.format.empty() || job.output.format == "native";
  const bool is_unknown = format.empty() && job.merge_rules.empty();
  const bool is_native = is_unknown || (format == "native" && to_native);
  if (is_native) require_dcp(job.output);
  if (is_native) job.require_parallel_format("native");
  if (is_native && !job.merge_rules.empty())
    raise(ErrorCode::InvalidArgument, "--merge-rules is for checkpoints of DeepSpeed",
          "leave it out; nothing was written");
  if (is_native && !job.part.like.empty())
    raise(ErrorCode::InvalidArgument, "--like is for rank files of FSDP1",
          "leave it out; nothing was written");
  return is_native ? run_reshard(team, job) : job.run(team);
}

int run(const ReshardRequest& options) {
  ConvertRun job = options.job;
  job.resources.apply();
  job.output.path = options.output;
  job.rules.cuts = read_merge_rules(job.merge_rules);
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
  add_checkpoint(*command, "in", job.input);
  command
      ->add_option("out", options->output,
                   "Folder to write <tag> and `latest` to; nothing is overwritten")
      ->required();
  command
      ->add_option("-w,--world-size,--world_size", job.convert.world_size,
                   "Ranks of the new checkpoint")
      ->required();
  command->add_option("-s,--stage", job.convert.stage, "ZeRO stage, 0 to 3 (default: as it is)");
  job.add_parallel_ranks(*command);
  add_to_format(*command, job.output.format, "Format to write (default: the input's)", true);
  add_dcp_layout(*command, job.output.key_layout);
  add_compress(*command, job.output.compression);
  add_tag(*command, job.tag);
  job.part.add_to(*command);
  add_fresh(*command, job.may_be_fresh);
  command->add_flag("--dry-run,--dry_run", job.dry_run, "Print what would be read and written");
  add_no_check(*command, job.check,
               "Do not read the result back and compare it (formats other than UniShard's, "
               "which has checksums of its own)");
  add_no_check_input(*command, job.check_input);
  add_open_choices(*command, job.allows_missing, job.assumes_model_order);
  add_merge_rules(*command, job.merge_rules);
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
