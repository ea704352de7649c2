#include "unishard/converters/cut_proposal.hpp"
#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"

#include "commands/command.hpp"
#include "views/inspect_view.hpp"
#include "views/proposal_view.hpp"
#include "views/terminal.hpp"

#include <fmt/format.h>

namespace unishard::cli {
namespace {

struct InspectRequest {
  std::string checkpoint;
  std::optional<std::string> tag;
  std::string merge_rules;  // a file; empty: none
  std::string like;         // a model; empty: none
  std::optional<std::uint32_t> from_rank;
  InspectView view;
  bool tags = false;
  bool identity = false;
  bool json = false;
  Resources resources;
};

/// False where the checkpoint is to be described as well: JSON of a folder of UniShard's own whose
/// `latest` is right.
bool list_tags(const InspectRequest& options) {
  const tools::Description listed = tools::describe_tags(posix_storage(), options.checkpoint);
  if (options.json && (options.tag || listed.latest_problem.empty()) &&
      converters::probe(posix_storage(), options.checkpoint).format == "native")
    return false;
  if (options.json) {
    print_json(tags_json(listed));
  } else {
    print(tags_text(listed));
  }
  if (!listed.latest_problem.empty()) say(fmt::format("note: {}", listed.latest_problem));
  return true;
}

/// Of a checkpoint that does not say how its tensors were cut, prints a guess instead of a layout.
/// Returns false for every other one.
bool propose_rules(const InspectRequest& options) {
  if (!options.view.layout || !options.merge_rules.empty()) return false;
  const auto proposal = converters::propose_cuts(posix_storage(), options.checkpoint, options.tag);
  if (!proposal) return false;
  if (options.json) {
    print_json(proposal_json(*proposal, options.checkpoint));
  } else {
    print(proposal_text(*proposal, options.checkpoint));
  }
  say("note: " + proposal_note(*proposal, options.checkpoint));
  return true;
}

int run(const InspectRequest& options) {
  Progress progress(options.resources.quiet);
  catch_interrupts();
  if (options.tags && list_tags(options)) return 0;
  if (propose_rules(options)) return 0;
  const bool needs_norm = options.view.sort == SortBy::Norm;
  tools::DescribeOptions wanted{.layout = options.view.layout,
                                .stats = options.view.stats || needs_norm,
                                .identity = options.identity,
                                .transfer = options.resources.transfer(progress),
                                .like = options.like};
  const tools::Description description =
      tools::describe(posix_storage(), options.checkpoint,
                      {.tag = options.tag,
                       .from_rank = options.from_rank,
                       .merge_rules = read_merge_rules(options.merge_rules)},
                      wanted);
  if (options.view.layout && description.owners.empty()) {
    raise(ErrorCode::InvalidArgument,
          fmt::format("--layout: {} {}", description.path.string(),
                      description.catalog.world_size > 1
                          ? "tells no parts of ranks: its tensors are put together by their names, "
                            "and no rules are needed"
                          : "is not sharded over ranks"));
  }
  InspectView view = options.view;
  view.width = terminal_width();
  view.states |= view.stats || needs_norm;
  if (options.json) {
    print_json(inspect_json(description, view));
  } else if (view.layout) {
    print(layout_text(description, view));
  } else {
    print(inspect_text(description, view));
  }
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  const auto options = std::make_shared<InspectRequest>();
  CLI::App* command =
      add_verb(app, action, "inspect", "Show what a checkpoint holds, without reading its data",
               options, run);
  add_checkpoint(*command, "checkpoint", options->checkpoint);
  add_tag(*command, options->tag);
  add_merge_rules(*command, options->merge_rules);
  add_like(*command, options->like);
  add_from_rank(*command, options->from_rank);
  command->add_flag("--states", options->view.states,
                    "A row for each state of each parameter of each layer");
  command->add_flag_callback(
      "--no-collapse,--no_collapse", [options] { options->view.collapse = false; },
      "A row for each parameter of each layer, not one for layers that agree");
  command->add_flag("--stats", options->view.stats,
                    "NaN, Inf, min, max and norm of each tensor (read from the data where the "
                    "format does not store them)");
  command->add_flag("--identity", options->identity,
                    "Measure the identity where the format stores no digests (reads all data)");
  command->add_flag("--layout", options->view.layout,
                    "Draw which rank holds what; where no file says how tensors were cut, "
                    "propose --merge-rules instead");
  command->add_option("--filter", options->view.filter,
                      "Only parameters that match a shell pattern, such as 'h.0.*'");
  const std::map<std::string, SortBy> orders = {{"model", SortBy::Model},
                                                {"name", SortBy::Name},
                                                {"bytes", SortBy::Bytes},
                                                {"elements", SortBy::Elements},
                                                {"norm", SortBy::Norm}};
  command
      ->add_option("--sort", options->view.sort, "model (default), name, bytes, elements or norm")
      ->transform(CLI::Transformer(orders).description(""))
      ->transform(CLI::IsMember(orders).description(""))  // runs first
      ->type_name("ORDER");
  command->add_flag("--tags", options->tags, "List the checkpoints of the folder");
  command->add_flag("--json", options->json, "All of it as JSON, for programs");
  options->resources.add_to(*command);
  command->footer(
      "Numbered layers that agree in shape, types and states are one row: "
      "h.{0..47}.attn.c_attn.weight.\n"
      "Examples:\n"
      "  unishard inspect runs/gpt --no-collapse --sort bytes\n"
      "  unishard inspect runs/gpt --states --filter 'h.0.*'\n"
      "  unishard inspect runs/gpt --stats --sort norm\n"
      "  unishard inspect runs/gpt -t global_step500 --layout --filter 'h.0.*'\n"
      "  unishard inspect megatron_run --layout > rules.json    (a guess: look at it first)\n"
      "  unishard inspect model.safetensors --json | jq .parameters\n");
}

}  // namespace unishard::cli
