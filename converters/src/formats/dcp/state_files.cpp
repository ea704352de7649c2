#include "formats/dcp/state_files.hpp"

#include "unishard/format/error.hpp"

#include "containers/inline_tensors.hpp"
#include "reading/broken_files.hpp"
#include "reading/folder_names.hpp"
#include "reading/state_doubts.hpp"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <utility>

namespace unishard::converters::dcp {
namespace {

bool has_groups(torch::Value root) {
  const auto groups = root.is_dict() ? root.find("param_groups") : std::nullopt;
  return groups && groups->is_sequence() && groups->size() > 0;
}

/// Returns the number of processes that have a file of their random states.
std::size_t count_processes(Storage& storage, const Path& folder) {
  std::size_t count = 0;
  while (storage.kind(folder / fmt::format("random_states_{}.pkl", count)) == EntryKind::File)
    ++count;
  return count;
}

bool is_schedule(torch::Value root) {
  return root.is_dict() && !root.find("param_groups") && root.find("last_epoch");
}

}  // namespace

bool is_optimizer_state(torch::Value root) {
  return root.is_dict() && root.find("state") && root.find("param_groups");
}

std::string other_name(Storage& storage, const Path& path, const torch::TorchFile& file) {
  const std::string written = file.archive_name() + path.extension().string();
  const bool is_state = written.starts_with("optimizer") || written.starts_with("scheduler") ||
                        written.starts_with("pytorch_model");
  const bool is_other = is_state && written != path.filename().string() &&
                        storage.kind(path.parent_path() / written) == EntryKind::File;
  return is_other ? written : std::string();
}

std::optional<torch::TorchFile> open_state(Storage& storage, StateDictBuilder& builder,
                                           const Path& path, Role role) {
  const std::string name = path.filename().string();
  std::optional<torch::TorchFile> object;
  const bool is_read = read_or_lose(builder.out.losses, role, name, [&] {
    const std::shared_ptr<const File> file = builder.open(path);
    object.emplace(torch::Window{file, 0, file->size()});
    StateDictBuilder(storage).add_object(name, {{name, false}}, *object);  // what it describes
  });
  return is_read ? std::move(object) : std::nullopt;
}

bool is_in_place(Storage& storage, StateDictBuilder& builder, const Path& path,
                 const torch::TorchFile& file, Role role) {
  const bool is_of_optimizer = role == Role::Optimizer;
  std::string why;
  if (const std::string other = other_name(storage, path, file); !other.empty()) {
    why = fmt::format("the file that was written as {}", other);
  } else if (is_of_optimizer ? is_schedule(file.root()) : is_optimizer_state(file.root())) {
    why = fmt::format("the state of {}", is_of_optimizer ? "a schedule" : "an optimizer");
  } else if (is_of_optimizer && !has_groups(file.root())) {
    why = "an object without param_groups, of which every optimizer has one or more";
  } else {
    return true;
  }
  builder.out.losses.push_back(
      {.role = role, .name = path.filename().string(), .why = std::move(why), .is_broken = true});
  return false;
}

std::string missing_schedule(std::string_view schedule, std::string_view optimizer) {
  return fmt::format("{} is not there, which a Trainer saves beside {}", schedule, optimizer);
}

void read_schedule_file(Storage& storage, StateDictBuilder& builder, const Path& path) {
  const std::optional<torch::TorchFile> file = open_state(storage, builder, path, Role::Setting);
  if (!file || !is_in_place(storage, builder, path, *file, Role::Setting)) return;
  builder.out.scheduler =
      torch::with_inline_tensors(*file, path.filename().string(), builder.out.losses);
}

void add_likely_steps(Storage& storage, const Path& folder, StateDictBuilder& builder) {
  if (const auto named = step_in_name(folder.filename().string()))
    builder.out.likely_steps.push_back({static_cast<double>(*named), "the folder's name"});
  const auto counted = steps_of_schedule(builder.out.scheduler);
  if (!counted) return;
  // accelerate's schedules count every process, unless a script makes batches for all together.
  const std::size_t processes = count_processes(storage, folder);
  const bool is_multiple =
      processes > 1 && std::fmod(*counted, static_cast<double>(processes)) == 0;
  if (is_multiple)
    builder.out.likely_steps.push_back(
        {*counted / static_cast<double>(processes),
         fmt::format("the schedule, {}, divided by its {} processes", *counted, processes)});
  else
    builder.out.likely_steps.push_back({*counted, "the schedule"});
}

}  // namespace unishard::converters::dcp
