#include "formats/trainer/trainer_state.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include "core/python_json.hpp"
#include "formats/trainer/folder.hpp"
#include "reading/broken_files.hpp"

#include <fmt/format.h>

#include <utility>

namespace unishard::converters::trainer {
namespace {

constexpr std::uint64_t kBytes = std::uint64_t{64} << 20;
constexpr const char* kSteps = "global_step";

}  // namespace

std::optional<std::int64_t> read_progress(Storage& storage, const Path& folder, Losses& losses) {
  const Path path = folder / kTrainerState;
  if (storage.kind(path) != EntryKind::File) return std::nullopt;
  bool is_json = true;
  try {
    const std::string text = strict_json(read_text(storage, path, kBytes));
    is_json = SortedJson::accept(text);
    const SortedJson state = parse_sorted_json(text, path.string());
    if (state.is_object() && state.contains(kSteps) && state[kSteps].is_number_unsigned() &&
        std::in_range<std::int64_t>(state[kSteps].get<std::uint64_t>()))
      return state[kSteps].get<std::int64_t>();
    losses.push_back(
        {Role::Setting, std::string(kTrainerState), fmt::format("there is no {}", kSteps)});
  } catch (const Error& error) {
    if (error.code() == ErrorCode::Io) {
      losses.push_back(damaged(Role::Setting, std::string(kTrainerState), error));
      return std::nullopt;
    }
    losses.push_back({.role = Role::Setting,
                      .name = std::string(kTrainerState),
                      .why = error.what(),
                      .is_broken = !is_json});
  }
  return std::nullopt;
}

bool has_one_process(Storage& storage, const Path& folder) {
  return storage.kind(folder / "rng_state.pth") == EntryKind::File &&
         storage.kind(folder / "rng_state_0.pth") == EntryKind::Missing;
}

namespace {

/// Returns the steps of the run, which an optimizer that was asked more often, or less, did not
/// count.
std::int64_t steps_of_run(const Catalog& catalog) {
  const Json& position = catalog.data_position;
  const Json steps = position.is_object() ? position.value("global_steps", Json()) : Json();
  const bool is_count = steps.is_number_integer() && steps >= 0;
  return is_count ? steps.get<std::int64_t>() : catalog.step;
}

}  // namespace

std::string progress_text(const Catalog& catalog) {
  const Json by_default = 8;      // that of TrainingArguments
  constexpr int kInterval = 500;  // as well
  const auto micro_batch = catalog.config.is_object()
                               ? catalog.config.value("train_micro_batch_size_per_gpu", Json())
                               : Json();
  Json control = {{"args",
                   {{"should_training_stop", false},
                    {"should_epoch_stop", false},
                    {"should_save", false},
                    {"should_evaluate", false},
                    {"should_log", false}}},
                  {"attributes", Json::object()}};
  return Json{{kSteps, steps_of_run(catalog)},
              {"train_batch_size", micro_batch.is_number_unsigned() ? micro_batch : by_default},
              {"save_steps", kInterval},
              {"logging_steps", kInterval},
              {"eval_steps", kInterval},
              {"log_history", Json::array()},
              {"stateful_callbacks", {{"TrainerControl", std::move(control)}}}}
             .dump(2) +
         "\n";
}

}  // namespace unishard::converters::trainer
