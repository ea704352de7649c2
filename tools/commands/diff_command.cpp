#include "commands/command.hpp"
#include "commands/convert_run.hpp"
#include "views/diff_view.hpp"
#include "views/terminal.hpp"
#include "workflows/diff.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

namespace unishard::cli {
namespace {

struct DiffRequest {
  std::string a;
  std::string b;
  std::optional<std::string> tag_a;
  std::optional<std::string> tag_b;
  std::string merge_rules, merge_rules_a, merge_rules_b;  // files; empty: none
  std::optional<std::uint32_t> from_rank, from_rank_a, from_rank_b;
  bool assumes_model_order = false;
  tools::DiffOptions diff;
  bool json = false;
  std::string color = "auto";
  Resources resources;
};

/// Returns what was given for one side, else for both.
Json rules_of(const DiffRequest& options, const std::string& of_side) {
  return read_merge_rules(of_side.empty() ? options.merge_rules : of_side);
}

int run(const DiffRequest& options) {
  Progress progress(options.resources.quiet);
  catch_interrupts();
  tools::DiffOptions wanted = options.diff;
  wanted.transfer = options.resources.transfer(progress);
  const auto a = converters::open_source(
      posix_storage(), options.a,
      {.tag = options.tag_a,
       .from_rank = options.from_rank_a ? options.from_rank_a : options.from_rank,
       .assume_model_order = options.assumes_model_order,
       .merge_rules = rules_of(options, options.merge_rules_a)});
  const auto b = converters::open_source(
      posix_storage(), options.b,
      {.tag = options.tag_b,
       .from_rank = options.from_rank_b ? options.from_rank_b : options.from_rank,
       .assume_model_order = options.assumes_model_order,
       .merge_rules = rules_of(options, options.merge_rules_b)});
  const tools::DiffReport report = tools::diff(*a, *b, wanted);
  progress.end();
  if (options.json) {
    print_json(diff_json(report));
  } else {
    print(diff_text(report), wants_color(options.color));
  }
  return report.same_state() ? 0 : 1;
}

}  // namespace

void add_diff(CLI::App& app, Action& action) {
  const auto options = std::make_shared<DiffRequest>();
  CLI::App* command = add_verb(app, action, "diff",
                               "Compare the states of two checkpoints of any format", options, run);
  add_checkpoint(*command, "a", options->a);
  add_checkpoint(*command, "b", options->b, "Another one");
  command->add_option("--tag-a", options->tag_a, "Tag of A (default: what `latest` names)");
  command->add_option("--tag-b", options->tag_b, "Tag of B");
  add_merge_rules(*command, options->merge_rules);
  command->add_option("--merge-rules-a", options->merge_rules_a,
                      "The same for A, where B says how its tensors were cut or has them whole");
  command->add_option("--merge-rules-b", options->merge_rules_b, "The same for B");
  add_from_rank(*command, options->from_rank);
  command->add_option("--from-rank-a", options->from_rank_a,
                      "The same for A, where B has one copy of each tensor");
  command->add_option("--from-rank-b", options->from_rank_b, "The same for B");
  add_assume_model_order(*command, options->assumes_model_order);
  command
      ->add_option("--tolerance", options->diff.tolerance,
                   "Largest |a - b| to accept (default: every bit must agree)")
      ->type_name("NUMBER")
      ->check([](const std::string& text) {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        const bool is_number = !text.empty() && *end == '\0';
        return is_number && std::isfinite(value) && value >= 0
                   ? std::string()
                   : fmt::format("{} is no finite number of 0 or more", text);
      });
  command->add_option("--states", options->diff.states, "Only these states, such as fp32,exp_avg")
      ->delimiter(',');
  command->add_flag("--upcast", options->diff.upcast,
                    "Compare tensors of different floating-point types by their values, not as "
                    "different");
  command->add_flag("--json", options->json, "Report as JSON");
  add_color(*command, options->color);
  options->resources.add_to(*command);
  command->footer(
      "Tensors whose digests agree are equal; only the others are read.\n"
      "Exit status: 0 the same tensors, 1 different. Steps, groups and other values beside the\n"
      "tensors are compared for information only.\n"
      "Examples:\n"
      "  unishard diff runs/a runs/b\n"
      "  unishard diff runs/a runs/a --tag-a global_step1 --tag-b global_step2 --tolerance 1e-6\n"
      "  unishard diff runs/a model.safetensors\n"
      "  unishard diff runs/a model-bf16/ --upcast --tolerance 1e-2\n"
      "  unishard diff model.safetensors megatron_run --merge-rules-b rules.json\n");
}

}  // namespace unishard::cli
