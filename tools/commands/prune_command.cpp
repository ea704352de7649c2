#include "unishard/converters/registry.hpp"
#include "unishard/format/commit.hpp"
#include "unishard/format/text.hpp"

#include "commands/command.hpp"
#include "views/terminal.hpp"
#include "workflows/native_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace unishard::cli {
namespace {

struct PruneRequest {
  std::string folder;
  std::uint32_t keep_last = 0;
  bool dry_run = false;
  bool json = false;
};

/// Returns the checkpoints of other programs, which stay in any case.
std::vector<KeptTag> foreign_tags(Storage& storage, const Path& folder) {
  std::vector<KeptTag> kept;
  for (const auto& [tag, format, step] : converters::list_sub_folders(storage, folder)) {
    if (!format.empty() && format != "native")
      kept.push_back(
          {tag, fmt::format("its format is {}, and prune removes UniShard's own only", format)});
  }
  return kept;
}

PruneResult prune_folder(Storage& storage, const PruneRequest& options) {
  std::vector<KeptTag> foreign = foreign_tags(storage, options.folder);
  const bool is_native = converters::probe(storage, options.folder).format == "native";
  if (foreign.empty()) tools::require_native(storage, options.folder);
  PruneResult result;
  if (is_native)
    result = options.dry_run ? plan_prune(storage, options.folder, options.keep_last)
                             : prune(storage, options.folder, options.keep_last);
  std::ranges::move(foreign, std::back_inserter(result.kept));
  return result;
}

void show(const PruneRequest& options, const PruneResult& result) {
  if (options.json) {
    Json kept = Json::array();
    for (const KeptTag& tag : result.kept)
      kept.push_back({{"tag", tag.tag}, {"reason", tag.reason}});
    return print_json({{"dry_run", options.dry_run}, {"removed", result.removed}, {"kept", kept}});
  }
  for (const KeptTag& tag : result.kept)
    say(fmt::format("note: {} is kept: {}", tag.tag, tag.reason));
  for (const std::string& tag : result.removed) {
    print(fmt::format("{} {}\n", options.dry_run ? "would remove" : "removed", printable(tag)));
  }
  const bool has_failed = std::ranges::any_of(result.kept, &KeptTag::is_failure);
  if (result.removed.empty() && !has_failed) print("nothing to remove\n");
}

int run(const PruneRequest& options) {
  const PruneResult result = prune_folder(posix_storage(), options);
  show(options, result);
  const auto failed = std::ranges::find_if(result.kept, &KeptTag::is_failure);
  if (failed == result.kept.end()) return 0;
  raise(ErrorCode::Io,
        fmt::format("{} checkpoints of {} could not be removed: {}",
                    std::ranges::count_if(result.kept, &KeptTag::is_failure), options.folder,
                    failed->reason),
        "make the folder writable, or wait for the process that uses it");
}

}  // namespace

void add_prune(CLI::App& app, Action& action) {
  const auto options = std::make_shared<PruneRequest>();
  CLI::App* command = add_verb(app, action, "prune",
                               "Remove all but the newest checkpoints of a folder", options, run);
  command->add_option("checkpoint_dir", options->folder, "Folder with `latest` and tags")
      ->required();
  command
      ->add_option("-k,--keep-last,--keep_last", options->keep_last, "Complete checkpoints to keep")
      ->required()
      ->check(CLI::Range(1u, 1000000000u));
  command->add_flag("-n,--dry-run,--dry_run", options->dry_run, "Only say what would be removed");
  command->add_flag("--json", options->json, "Result as JSON");
  command->footer(
      "The newest are those that were committed last, whatever their steps; only whole ones "
      "count,\n"
      "by their manifests, sizes and tables: `unishard verify --deep` reads the data as well.\n"
      "Those that `latest` names, to which a link in the folder points, that are damaged, or that\n"
      "hold files which UniShard did not write are always kept.\n"
      "Example:\n"
      "  unishard prune runs/gpt --keep-last 3 --dry-run\n");
}

}  // namespace unishard::cli
