#include "reading/part_content.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace unishard::converters {
namespace {

/// Where programs keep the arguments of the training: Megatron-LM and forks, NeMo
/// (hyper_parameters, cfg), Nanotron and others (config).
constexpr std::array<std::string_view, 5> kPlaces = {"args", "hyper_parameters", "cfg", "config",
                                                     "model"};
constexpr int kDegreeDepth = 3;

/// Degrees of parallelism that divide a model among files. Data and context parallelism do not.
constexpr std::array<std::string_view, 5> kDegrees = {
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size",
    "model_parallel_size", "tensor_parallel_degree"};

/// Returns a member of a dict, or a field of an object such as a Namespace.
std::optional<torch::Value> member(torch::Value value, std::string_view name) {
  if (value.is_dict()) return value.find(name);
  return value.is(torch::NodeKind::Object) ? value.field(name) : std::nullopt;
}

bool is_container(torch::Value value) {
  return value.is_dict() || value.is(torch::NodeKind::Object);
}

/// Collects "tensor_model_parallel_size 2" of the first place that has degrees.
std::vector<std::string> degrees_in(torch::Value value, int depth) {
  std::vector<std::string> found;
  for (const std::string_view name : kDegrees) {
    const auto degree = member(value, name);
    if (!degree || !degree->is(torch::NodeKind::Int) || degree->integer() < 2) continue;
    found.push_back(fmt::format("{} {}", name, degree->integer()));
  }
  for (const std::string_view name : kPlaces) {
    if (depth == 0 || !found.empty()) break;
    const auto place = member(value, name);
    if (place && is_container(*place)) found = degrees_in(*place, depth - 1);
  }
  return found;
}

/// Whether a member is there and not None.
bool has(torch::Value dict, std::string_view name) {
  const auto found = dict.find(name);
  return found && !found->is_none();
}

/// Whether a dict is what one of DeepSpeed's optimizers saves of its rank: flat groups, no names.
bool is_flat_optimizer(torch::Value dict) {
  constexpr std::array<std::string_view, 5> kOwn = {"fp32_flat_groups", "fp32_groups",
                                                    "fp32_groups_flat", "partition_count",
                                                    "single_partition_of_fp32_groups"};
  return std::ranges::any_of(kOwn, [&](std::string_view name) { return has(dict, name); });
}

/// Whether a file holds the like and no model: that of ZeRO, of a universal checkpoint of stage 3,
/// or of the experts of a rank.
bool is_of_flat_optimizer(torch::Value root) {
  if (!root.is_dict() || root.find("module")) return false;
  for (const std::string_view name : {"optimizer_state_dict", "optimizer"}) {
    const auto states = root.find(name);
    if (states && states->is_dict() && (is_flat_optimizer(*states) || is_flat_optimizer(root)))
      return true;
  }
  return false;
}

bool has_name_of_optimizer(const Path& path) {
  const std::string name = path.filename().string();
  return name.ends_with("_optim_states.pt") && name.find("mp_rank_") != name.npos;
}

/// A universal checkpoint has a folder for each parameter: zero/<fqn>/fp32.pt, exp_avg.pt, ...
std::optional<RunPart> part_of_universal(Storage& storage, const Path& path, torch::Value root) {
  constexpr const char* kMaster = "fp32.pt";
  const Path folder = path.parent_path();
  const bool is_in_place = folder.parent_path().filename() == "zero" &&
                           storage.kind(folder / kMaster) == EntryKind::File;
  const bool tells_cut = root.is_dict() && root.find("param") && root.find("cat_dim");
  if (!is_in_place && !tells_cut) return std::nullopt;
  if (!is_in_place)
    return RunPart{"the file of one parameter, or of a state of it, of a universal checkpoint"};
  const std::string stem = path.stem().string();
  return RunPart{fmt::format(
      "the file of {} of one parameter, {}, of a universal checkpoint",
      path.filename() == kMaster ? "the master" : fmt::format("the state {}", quote(stem)),
      quote(folder.filename().string()))};
}

/// Says which files a model's file needs; empty for a file that holds all.
std::vector<std::string> missing_beside_model(torch::Value root) {
  std::vector<std::string> missing;
  const auto ranks = root.find("mp_world_size");
  if (ranks && ranks->is(torch::NodeKind::Int) && ranks->integer() > 1)
    missing.push_back(fmt::format("it is cut among {} model-parallel ranks", ranks->integer()));
  if (!has(root, "module")) missing.emplace_back("its layers are in other files");
  const auto experts = root.find("num_experts");
  if (experts && experts->is_sequence() && experts->size() > 0)
    missing.emplace_back("its experts are in other files");
  const auto optimizer = root.find("optimizer");
  if (optimizer && optimizer->is_dict() && is_flat_optimizer(*optimizer))
    missing.emplace_back("the float32 masters in it are read with its folder");
  if (has(root, "param_shapes") && !has(root, "optimizer"))
    missing.emplace_back("its float32 masters and the optimizer's states are in the ranks' files");
  return missing;
}

}  // namespace

std::optional<std::string> describe_part(torch::Value root) {
  if (!root.is_dict()) return std::nullopt;
  const std::vector<std::string> degrees = degrees_in(root, kDegreeDepth);
  if (degrees.empty()) return std::nullopt;
  return fmt::format("part of a parallel model: it was saved with {}", fmt::join(degrees, ", "));
}

std::optional<RunPart> describe_run_part(Storage& storage, const Path& path, torch::Value root) {
  constexpr std::string_view kOf = "one file of a DeepSpeed run";
  const bool is_flat = is_of_flat_optimizer(root);
  if (is_flat || has_name_of_optimizer(path))
    return RunPart{fmt::format("{}: what the optimizer has on its rank, without the parameters' "
                               "names",
                               kOf),
                   !is_flat};
  if (auto part = part_of_universal(storage, path, root)) return part;
  if (!root.is_dict() || !root.find("module") || !has(root, "ds_version")) return std::nullopt;
  const std::vector<std::string> missing = missing_beside_model(root);
  if (missing.empty()) return std::nullopt;
  return RunPart{fmt::format("{}: {}", kOf, fmt::join(missing, "; "))};
}

}  // namespace unishard::converters
