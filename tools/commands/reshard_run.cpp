#include "commands/reshard_run.hpp"

#include "support/machine.hpp"
#include "team/team_observer.hpp"
#include "views/conversion_view.hpp"
#include "views/reshard_view.hpp"
#include "views/terminal.hpp"
#include "workflows/native_folder.hpp"

#include <fmt/format.h>

#include <numeric>

namespace unishard::cli {
namespace {

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

}  // namespace

int run_reshard(tools::Team& team, const ConvertRun& job) {
  const std::shared_ptr<const CheckpointReader> input =
      tools::open_native_checkpoint(posix_storage(), job.input, job.tag);
  tools::ReshardPlan plan = tools::plan_reshard(
      *input, {.world_size = job.convert.world_size.value_or(0), .stage = job.convert.stage});
  return run_rewrite(team, job, {"reshard", "resharded", input, std::move(plan)});
}

int run_rewrite(tools::Team& team, const ConvertRun& job, Rewrite rewrite) {
  auto& [verb, done, input, plan] = rewrite;
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
                               {.verb = verb,
                                .input = job.input,
                                .output = std::move(output),
                                .check_input = job.check_input,
                                .read_back = tools::ReadBack::Recorded,
                                .may_be_fresh = job.may_be_fresh});
  if (speaks) say_notes(conversion.notes().remarks);
  if (speaks && !conversion.checking().note().empty()) say_notes({conversion.checking().note()});
  const tools::ConversionResult result = conversion.run(transfer);
  if (speaks && !job.resources.quiet)
    say(fmt::format("{} {}", done, progress.summary(conversion.shared().total_bytes())));
  if (speaks) report(job, *input, conversion, result, plan.payload_bytes);
  return result.different.empty() ? 0 : 1;
}

}  // namespace unishard::cli
