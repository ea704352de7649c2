#include "unishard/format/error.hpp"

#include "commands/command.hpp"
#include "support/size_text.hpp"
#include "views/report/page.hpp"
#include "views/report/report_json.hpp"
#include "views/terminal.hpp"
#include "workflows/report/marked_output.hpp"
#include "workflows/report/report.hpp"

#include <fmt/format.h>

#include <optional>

namespace unishard::cli {
namespace {

struct ReportRequest {
  std::vector<std::string> checkpoints;
  std::string output = "report.html";
  tools::ReportOptions report;
  bool json = false;
  Resources resources;

  bool goes_to_standard_output() const { return output == "-"; }
};

int run(const ReportRequest& options) {
  if (options.goes_to_standard_output() && options.json)
    raise(ErrorCode::InvalidArgument, "--json and -o - both write to standard output",
          "name a file with -o");
  if (options.output.empty())
    raise(ErrorCode::InvalidArgument, "-o is an empty text",
          "name a file, or - for standard output");
  std::optional<tools::MarkedOutput> output;
  if (!options.goes_to_standard_output())
    output.emplace(posix_storage(), options.output, std::string(report_mark()));
  Progress progress(options.resources.quiet);
  catch_interrupts();
  tools::ReportOptions wanted = options.report;
  wanted.transfer = options.resources.transfer(progress);
  const tools::Report report = tools::make_report(posix_storage(), options.checkpoints, wanted);
  const std::string page = report_page(report_page_data(report));
  progress.end();
  if (output) {
    output->write(page);
  } else {
    print(page);
  }
  if (options.json) {
    print_json(report_summary(report, options.output, page.size()));
  } else if (output) {
    print(fmt::format("{} ({})\n", options.output, tools::format_bytes(page.size())));
  }
  if (report.is_clean()) return 0;
  if (!options.resources.quiet) say("damage was found: the report lists it");
  return 1;
}

}  // namespace

void add_report(CLI::App& app, Action& action) {
  const auto options = std::make_shared<ReportRequest>();
  CLI::App* command =
      add_verb(app, action, "report",
               "Show checkpoints as one HTML page, without reading their data", options, run);
  add_checkpoint(*command, "checkpoint", options->checkpoints);
  command
      ->add_option("-o,--output", options->output,
                   "The page; - is standard output. Replaces an earlier report, and nothing else")
      ->capture_default_str();
  command->add_option("-t,--tag", options->report.tag,
                      "Tag of the first checkpoint (default: what `latest` names)");
  command->add_flag("--all", options->report.all_tags,
                    "Also every other checkpoint of the first one's folder, the newest first");
  command->add_flag("--stats", options->report.stats,
                    "Measure statistics where the format stores none (reads the data)");
  command->add_flag("--deep", options->report.deep,
                    "Check every byte, and read what digests cannot compare");
  command->add_flag("--json", options->json, "Summary as JSON");
  options->resources.add_to(*command);
  command->footer(
      "The page shows the first checkpoint in full: who holds what, norms and outliers of each\n"
      "layer, all tensors. With several it also draws them over their steps, and compares the\n"
      "first two. It opens from a file, without a network.\n"
      "Exit status: 0 written, 1 written, and a checkpoint is damaged.\n"
      "Examples:\n"
      "  unishard report runs/gpt -o gpt.html\n"
      "  unishard report runs/gpt --all\n"
      "  unishard report runs/a runs/b --deep\n"
      "  unishard report model.safetensors --stats -o - > model.html\n");
}

}  // namespace unishard::cli
