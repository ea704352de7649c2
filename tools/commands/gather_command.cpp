#include "unishard/format/error.hpp"
#include "unishard/format/node_shards.hpp"

#include "commands/reshard_run.hpp"
#include "workflows/gather.hpp"

namespace unishard::cli {
namespace {

struct GatherRequest {
  ConvertRun job;
  std::vector<std::string> paths;  ///< folders of nodes, then the output
  Processes processes;
};

int run_in(tools::Team& team, ConvertRun job, const std::vector<Path>& folders) {
  const tools::GatheredCheckpoint gathered =
      tools::open_gathered(posix_storage(), folders, job.tag);
  const Catalog& catalog = gathered.reader->catalog();
  tools::ReshardPlan plan = tools::plan_reshard(
      *gathered.reader, {.world_size = catalog.world_size, .stage = catalog.stage});
  plan.target.producer = catalog.producer;
  record_nodes(plan.target, {});  // from now on it lies in one folder
  job.input = folders.front();
  return run_rewrite(team, job, {"gather", "gathered", gathered.reader, std::move(plan)});
}

int run(const GatherRequest& options) {
  ConvertRun job = options.job;
  job.resources.apply();
  if (options.paths.size() < 2)
    raise(ErrorCode::InvalidArgument, "gather needs the folder of a node and an output folder");
  job.output.path = options.paths.back();
  const std::vector<Path> folders(options.paths.begin(), options.paths.end() - 1);
  using Kind = Processes::Work::Kind;
  return options.processes.run({job.output.path, job.dry_run ? Kind::Whole : Kind::Writes},
                               [&](tools::Team& team) { return run_in(team, job, folders); });
}

}  // namespace

void add_gather(CLI::App& app, Action& action) {
  const auto options = std::make_shared<GatherRequest>();
  ConvertRun& job = options->job;
  CLI::App* command =
      add_verb(app, action, "gather",
               "Make one checkpoint of those that nodes saved to their own disks", options, run);
  command
      ->add_option("paths", options->paths,
                   "NODE_DIR... OUT: the folders of all nodes, each with `latest` or of one tag, "
                   "and the folder to write <tag> and `latest` to; nothing is overwritten")
      ->required();
  add_tag(*command, job.tag);
  add_compress(*command, job.output.compression);
  add_fresh(*command, job.may_be_fresh);
  command->add_flag("--dry-run,--dry_run", job.dry_run, "Print what would be read and written");
  command->add_flag("--json", job.json, "Result or plan as JSON");
  options->processes.add_to(*command);
  job.resources.add_to(*command);
  command->footer(
      "With \"checkpoint\": {\"use_node_local_storage\": true} each node saves the shards of its "
      "own ranks.\n"
      "Examples:\n"
      "  unishard gather node0/runs/gpt node1/runs/gpt runs/gpt\n"
      "  unishard gather --tag global_step500 node0/gpt node1/gpt runs/gpt --dry-run\n");
}

}  // namespace unishard::cli
