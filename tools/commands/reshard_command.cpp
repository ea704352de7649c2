#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"
#include "unishard/format/text.hpp"

#include "commands/convert_run.hpp"
#include "support/machine.hpp"
#include "support/size_text.hpp"
#include "team/team_observer.hpp"
#include "views/reshard_view.hpp"
#include "views/terminal.hpp"
#include "workflows/input_check.hpp"
#include "workflows/native_folder.hpp"
#include "workflows/shared_output.hpp"

#include <fmt/format.h>

namespace unishard::cli {
namespace {

struct ReshardRequest {
  std::string input;
  std::string output;
  std::optional<std::string> tag;
  std::string to;  ///< empty: as it is
  tools::ReshardTarget target;
  Compression compression;
  bool dry_run = false;
  bool json = false;
  bool check = true;
  bool check_input = true;
  Processes processes;
  Resources resources;
};

/// Of other formats, or into one: the same job as `convert`.
int run_foreign(tools::Team& team, const ReshardRequest& options) {
  ConvertRun job;
  job.input = options.input;
  job.tag = options.tag;
  job.convert.world_size = options.target.world_size;
  job.convert.stage = options.target.stage;
  job.output.format = options.to;
  job.output.path = options.output;
  job.output.compression = options.compression;
  job.dry_run = options.dry_run;
  job.json = options.json;
  job.check = options.check;
  job.check_input = options.check_input;
  job.resources = options.resources;
  return run_convert(team, std::move(job));
}

struct Prepared {
  tools::ReshardPlan plan;
  ReshardSurroundings around;
  std::string tag;
};

Prepared prepare(const ReshardRequest& options, const CheckpointReader& source) {
  Prepared out;
  out.plan = tools::plan_reshard(source, options.target);
  out.around = {.memory_bytes = options.resources.memory_bytes(),
                .free_bytes = tools::free_bytes(options.output),
                .source_shards = static_cast<std::uint32_t>(source.shards().size())};
  out.tag = source.manifest().tag;
  return out;
}

/// Returns the identity of what was written, as the first process read it back.
std::string transfer(tools::Team& team, const ReshardRequest& options,
                     std::shared_ptr<const CheckpointReader> input, const Prepared& prepared) {
  Progress progress(options.resources.quiet || !team.is_first());
  tools::TeamObserver observer(team, progress);
  const Catalog& target = prepared.plan.target;
  const TransferOptions limits =
      options.resources.transfer(observer, target.tensors.size(), options.compression);
  const auto source = converters::make_native_source(std::move(input));
  const tools::InputChecking checking(*source, options.check_input);
  if (team.is_first() && !checking.note().empty()) say("note: " + checking.note());
  catch_interrupts();  // before anything is created
  const auto shared =
      tools::make_shared_sink(team, target, [&](const converters::WorkSplit& share) {
        return converters::make_native_sink(posix_storage(), options.output, prepared.tag, target,
                                            options.compression, share);
      });
  std::vector<std::size_t> same(target.tensors.size());
  for (std::size_t i = 0; i < same.size(); ++i) same[i] = i;
  progress.begin("reshard", team.size() > 1 ? shared.bytes[0] : prepared.plan.payload_bytes);
  const tools::WrittenOutput written = tools::write_together(
      team, {.source = source.get(), .target = &target, .tensor_map = same}, *shared.sink, limits);
  std::string identity_out;
  team.agree("opening the output", [&] {
    if (!team.is_first()) return;
    const CheckpointReader opened(posix_storage(), written.staged);
    identity_out = identity(opened.catalog()).value_or("unknown");
  });
  tools::publish_together(team, *shared.sink);
  progress.end();
  if (team.is_first() && !options.resources.quiet)
    say("resharded " + progress.summary(shared.total_bytes()));
  return identity_out;
}

int run_in(tools::Team& team, const ReshardRequest& options) {
  Storage& storage = posix_storage();
  const std::string format = converters::probe(storage, options.input).format;
  const bool to_native = options.to.empty() || options.to == "native";
  if (!format.empty() && (format != "native" || !to_native)) return run_foreign(team, options);
  const std::shared_ptr<const CheckpointReader> input =
      tools::open_native_checkpoint(storage, options.input, options.tag);
  const Prepared prepared = prepare(options, *input);
  if (options.dry_run) {
    if (options.json) {
      print_json(reshard_json(prepared.plan, prepared.around));
    } else {
      print(reshard_text(prepared.plan, prepared.around));
    }
    return 0;
  }
  tools::require_outside_checkpoints(storage, options.output, true);
  tools::require_space(options.output, prepared.plan.disk_bytes);
  const std::string after = transfer(team, options, input, prepared);
  if (!team.is_first()) return 0;
  const Path output = Path(options.output) / prepared.tag;
  const std::string before = identity(prepared.plan.target).value_or("unknown");
  if (options.json) {
    print_json({{"output", output.string()},
                {"identity_in", before},
                {"identity_out", after},
                {"equal", before == after},
                {"world_size", prepared.plan.target.world_size},
                {"stage", prepared.plan.target.stage},
                {"payload_bytes", prepared.plan.payload_bytes}});
  } else {
    print(fmt::format("identity {}  {}\nidentity {}  {}\n{}\n", before,
                      printable(input->folder().string()), after, printable(output.string()),
                      before == after ? "equal: every tensor has the same digest" : "DIFFERENT"));
  }
  return before == after ? 0 : 1;
}

int run(const ReshardRequest& options) {
  using Kind = Processes::Work::Kind;
  return options.processes.run({options.output, options.dry_run ? Kind::Whole : Kind::Writes},
                               [&](tools::Team& team) { return run_in(team, options); });
}

}  // namespace

void add_reshard(CLI::App& app, Action& action) {
  const auto options = std::make_shared<ReshardRequest>();
  CLI::App* command = add_verb(
      app, action, "reshard", "Rewrite a checkpoint for another world size or stage", options, run);
  command->add_option("in", options->input, "Folder with `latest`, or one tag's folder")
      ->required();
  command
      ->add_option("out", options->output,
                   "Folder to write <tag> and `latest` to; nothing is overwritten")
      ->required();
  command
      ->add_option("-w,--world-size,--world_size", options->target.world_size,
                   "Ranks of the new checkpoint")
      ->required();
  command->add_option("-s,--stage", options->target.stage,
                      "ZeRO stage, 0 to 3 (default: as it is)");
  command->add_option("--to", options->to, "Format to write (default: the input's)")
      ->check(CLI::IsMember(sharded_format_names()));
  add_compress(*command, options->compression);
  add_tag(*command, options->tag);
  command->add_flag("--dry-run,--dry_run", options->dry_run,
                    "Print what would be read and written");
  command->add_flag("!--no-check,!--no_check", options->check,
                    "Do not read the result back and compare it (formats other than UniShard's, "
                    "which has checksums of its own)");
  add_no_check_input(*command, options->check_input);
  command->add_flag("--json", options->json, "Result or plan as JSON");
  options->processes.add_to(*command);
  options->resources.add_to(*command);
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
