#include "formats/dcp/verl.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include "containers/inline_tensors.hpp"
#include "formats/dcp/keys.hpp"
#include "formats/dcp/raw_names.hpp"
#include "reading/completeness.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

namespace unishard::converters::dcp {
namespace {

constexpr std::string_view kTracker = "latest_checkpointed_iteration.txt",
                           kStepFolder = "global_step_", kConfig = "fsdp_config.json";
constexpr std::uint64_t kSmallFile = 4096;

bool is_step_name(std::string_view name) {
  return name.starts_with(kStepFolder) && is_number(name.substr(kStepFolder.size()));
}

std::vector<std::string> steps_in(Storage& storage, const Path& run) {
  std::vector<std::string> steps;
  for (const Entry& entry : storage.list(run)) {
    if (entry.kind == EntryKind::Directory && is_step_name(entry.name)) steps.push_back(entry.name);
  }
  std::ranges::sort(steps, {}, [](const std::string& step) {
    return std::pair(step.size(), step);  // 10 behind 9
  });
  return steps;
}

/// Returns the folder of the newest step; nullopt where `run` is no run of verl. Megatron-LM has a
/// file of that name, too, beside folders `iter_<N>`.
std::optional<Path> newest_step(Storage& storage, const Path& run) {
  const Path file = run / kTracker;
  if (storage.kind(file) != EntryKind::File) return std::nullopt;
  if (steps_in(storage, run).empty()) return std::nullopt;
  std::string number = read_text(storage, file, kSmallFile);
  number.erase(number.find_last_not_of(" \r\n") + 1);
  const Path step = run / fmt::format("{}{}", kStepFolder, number);
  if (is_number(number) && storage.kind(step) == EntryKind::Directory) return step;
  raise(ErrorCode::NotFound,
        fmt::format("{} names step {}, and there is no folder {}", file.string(),
                    unishard::quote(number), step.filename().string()),
        fmt::format("name the folder of one step: {}", fmt::join(steps_in(storage, run), ", ")));
}

/// Returns the folders with the files of ranks below a step: one for each model.
std::vector<Path> models_in(Storage& storage, const Path& step) {
  std::vector<Path> models;
  for (const Entry& entry : storage.list(step)) {
    if (entry.kind == EntryKind::Directory && has_rank_files(storage, step / entry.name))
      models.push_back(step / entry.name);
  }
  std::ranges::sort(models);
  return models;
}

/// FSDP2's optimizer gets Module.parameters() as they are, and the state dict has their order.
/// FSDP1's gets flat parameters.
bool is_fsdp2(Storage& storage, const Path& config, std::uint32_t ranks) {
  if (storage.kind(config) != EntryKind::File) return false;
  const Json content = parse_json(read_text(storage, config, kSmallFile), config.string());
  return content.is_object() && content.value("FSDP_version", Json()) == 2 &&
         content.value("world_size", Json()) == ranks;
}

/// Nothing tells which of several steps is meant.
void refuse_run_without_latest(Storage& storage, const Path& run) {
  std::vector<std::string> steps = steps_in(storage, run);
  std::erase_if(steps,
                [&](const std::string& step) { return models_in(storage, run / step).empty(); });
  if (steps.empty()) return;
  raise(ErrorCode::InvalidArgument,
        fmt::format("{} holds steps of verl and no {}, which names the newest", run.string(),
                    kTracker),
        fmt::format("name the folder of one step: {}", fmt::join(steps, ", ")));
}

void take_schedule(Json schedule, const Path& path, bool is_first, StateDict& state) {
  if (is_first) {
    state.scheduler = std::move(schedule);
  } else if (schedule != state.scheduler) {
    state.losses.push_back({Role::Setting,
                            fmt::format("lr_scheduler of {}", path.filename().string()),
                            "it is not that of the first rank, which is read"});
  }
}

}  // namespace

std::optional<Path> find_verl(Storage& storage, const Path& path,
                              const std::optional<std::string>& tag) {
  if (storage.kind(path) != EntryKind::Directory) return std::nullopt;
  std::optional<Path> step;
  if (tag) {
    if (is_step_name(*tag)) step = path / *tag;
  } else {
    step = is_step_name(path.filename().string()) ? path : newest_step(storage, path);
  }
  if (!step && !tag) refuse_run_without_latest(storage, path);
  if (!step || storage.kind(*step) != EntryKind::Directory) return std::nullopt;
  const std::vector<Path> models = models_in(storage, *step);
  if (models.empty()) return std::nullopt;
  if (models.size() == 1) return models.front();
  std::vector<std::string> names;
  for (const Path& model : models) names.push_back(model.string());
  raise(ErrorCode::InvalidArgument,
        fmt::format("{} holds the checkpoints of {} models", step->string(), models.size()),
        fmt::format("name one of them: {}", fmt::join(names, ", ")));
}

void add_extra_state(const RankFileGroup& extra, StateDictBuilder& builder) {
  std::set<std::string> others;
  for (const auto& [rank, path] : extra.files) {
    const torch::TorchFile object = open_rank_object(path, builder);
    Losses losses;  // of random states, which are left out as a whole
    const Json content = torch::with_inline_tensors(object, path.filename().string(), losses);
    if (!content.is_object()) continue;
    for (const auto& [name, value] : content.items()) {
      if (name == "lr_scheduler") {
        take_schedule(value, path, rank == extra.files.begin()->first, builder.out);
      } else {
        others.insert(name);
      }
    }
  }
  for (const std::string& name : others)
    builder.out.losses.push_back(
        {Role::ClientValue, fmt::format("{} of extra_state_*.pt", name), "each rank has its own"});
}

std::optional<Path> note_verl(Storage& storage, const Path& folder, StateDict& state) {
  const Path config = folder / kConfig;
  if (const std::string step = folder.parent_path().filename().string(); is_step_name(step))
    state.step = std::stod(step.substr(kStepFolder.size()));
  if (!is_fsdp2(storage, config, state.world_size)) return std::nullopt;
  state.producer = {{"library", "verl"}};
  state.are_parameters_distributed = true;
  state.number_names = {
      .fit = fit_by_shape,
      .decided = "in the order of the model, in which verl gives its parameters to the optimizer",
      .undecided = [](const auto&, const auto&) {
        return std::string("their shapes do not follow the order of the model's parameters");
      }};
  return config;
}

}  // namespace unishard::converters::dcp
