#include "formats/dcp/megatron.hpp"

#include "unishard/format/error.hpp"

#include "containers/object_tree.hpp"
#include "containers/pickle_json.hpp"
#include "formats/dcp/compared_masters.hpp"
#include "formats/dcp/keys.hpp"
#include "reading/broken_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace unishard::converters::dcp {
namespace {

constexpr std::string_view kLatest = "latest_checkpointed_iteration.txt", kCommon = "common.pt";
constexpr std::string_view kMetadata = "metadata.json", kIteration = "iter_";
constexpr std::string_view kStates = "optimizer.state.", kMaster = "fp32_param";
constexpr std::uint64_t kTextBytes = 4096;

/// "optimizer.state.<state>.<key>" becomes "optimizer.state.<key>.<state>", where <key> is one of
/// the model's.
void name_states_last(StateDict& state) {
  std::unordered_set<std::string> model;
  for (const TensorEntry& tensor : state.tensors) model.insert(tensor.key);
  for (TensorEntry& tensor : state.tensors) {
    if (!tensor.key.starts_with(kStates)) continue;
    const std::size_t dot = tensor.key.find('.', kStates.size());
    if (dot == std::string::npos || !model.contains(tensor.key.substr(dot + 1))) continue;
    std::string name = tensor.key.substr(kStates.size(), dot - kStates.size());
    if (name == kMaster) name = state::kFp32;
    const std::string parameter = tensor.key.substr(dot + 1);
    tensor.key = fmt::format("{}{}.{}", kStates, parameter, name);
    tensor.path = {{"optimizer", false}, {"state", false}, {parameter, false}, {name, false}};
  }
}

/// Objects that modules keep beside their parameters. Those without content are not needed.
void drop_empty_extra_states(StateDict& state) {
  std::erase_if(state.objects, [](const ObjectEntry& object) {
    const bool is_extra = object.key.find("._extra_state") != std::string::npos;
    return is_extra && (object.value.is_null() || object.value.empty());
  });
}

/// The groups do not name their parameters. One group has all of them.
void add_optimizer(const Json& optimizer, StateDict& state) {
  if (!optimizer.is_object()) return;
  Json groups = optimizer.value("param_groups", Json::array());
  if (!groups.is_array() || groups.empty()) return;
  const Json& first = groups[0];
  if (first.is_object() && first.contains("step") && first["step"].is_number())
    state.step = first["step"].get<double>();
  if (groups.size() == 1 && first.is_object() && !first.contains("params")) {
    Json names = Json::array();
    for (const TensorEntry& tensor : state.tensors) {
      const auto key = parse_state_key(tensor.key, tensor.path, {"optimizer."});
      if (key && key->state == state::kFp32) names.push_back(key->fqn);
    }
    groups[0]["params"] = std::move(names);
  }
  state.objects.push_back(
      {"optimizer.param_groups", {{"optimizer", false}, {"param_groups", false}}, groups});
}

/// The distributed optimizer of Megatron-Core 0.14 and later keeps its groups in objects
/// ("optimizer.distributed.dp_group_idx_0.optimizer/shard_0_1"), and its moments in flat buckets
/// that no parameter's name tells. Returns the step of the first group.
std::optional<double> step_of_distributed(const StateDict& state) {
  constexpr std::string_view kDistributed = "optimizer.distributed.";
  for (const ObjectEntry& object : state.objects) {
    if (!object.key.starts_with(kDistributed)) continue;
    const Json* const groups = torch::member(object.value, "param_groups");
    if (groups == nullptr || !groups->is_array() || groups->empty()) continue;
    const Json* const step = torch::member((*groups)[0], "step");
    if (step != nullptr && step->is_number()) return step->get<double>();
  }
  return std::nullopt;
}

/// The buckets say which parameters they hold only together with the sizes of Megatron's ranks.
void note_buckets(StateDict& state) {
  const bool has_buckets = std::ranges::any_of(state.tensors, [](const TensorEntry& tensor) {
    return tensor.key.find(".bucket_idx_") != std::string::npos;
  });
  if (has_buckets)
    state.notes.push_back(
        "the optimizer's masters and moments lie in flat buckets of Megatron-Core's distributed "
        "optimizer (dp_reshardable), which are kept as values: save with "
        "--dist-ckpt-optim-fully-reshardable to have them by parameter");
}

void add_common(const torch::TorchFile& file, StateDictBuilder& builder) {
  const torch::Value common = file.root();
  if (!common.is_dict()) return;
  for (std::size_t i = 0; i < common.pair_count(); ++i) {
    if (!common.key(i).is(torch::NodeKind::Str)) continue;
    const std::string name(common.key(i).text());
    const torch::Value value = common.value(i);
    if (name == "optimizer" && value.is_dict()) {
      add_optimizer(torch::to_json(value), builder.out);
    } else if (name == "opt_param_scheduler") {
      builder.out.scheduler = torch::to_json(value);
    } else {
      if (name == "iteration" && value.is(torch::NodeKind::Int) && !builder.out.step)
        builder.out.step = value.real();
      builder.add_part(name, {{name, false}}, file, value);
    }
  }
}

/// Without the optimizer's part of common.pt, nothing tells the settings of its groups.
void require_settings(StateDict& state) {
  constexpr std::string_view kOptimizer = "optimizer.";
  const auto is_optimizers = [&](const auto& entry) { return entry.key.starts_with(kOptimizer); };
  if (std::ranges::none_of(state.tensors, is_optimizers) ||
      std::ranges::any_of(state.objects, is_optimizers))
    return;
  state.losses.push_back({Role::Setting, fmt::format("optimizer of {}", kCommon),
                          "it is missing, and with it the settings of the parameter groups"});
}

/// An optimizer skips steps where gradients overflow, and never makes more than one of an
/// iteration.
void remark_on_iteration(const torch::Value& common, const Path& folder, StateDict& state) {
  const auto expected = iteration_of(folder);
  const auto saved = common.is_dict() ? common.find("iteration") : std::nullopt;
  if (!expected) return;
  const std::string name = folder.filename().string();
  if (saved && saved->is(torch::NodeKind::Int) && saved->real() != *expected)
    state.remarks.push_back(
        fmt::format("{} says iteration {}, and the folder is {}: it may be another save's", kCommon,
                    saved->integer(), name));
  if (state.step && *state.step > *expected)
    state.remarks.push_back(
        fmt::format("the optimizer counts {} steps, and the folder is {}: its settings may be "
                    "another save's",
                    *state.step, name));
}

}  // namespace

bool has_megatron_keys(const StateDict& state) {
  constexpr std::string_view kMoment = "optimizer.state.exp_avg.";
  std::unordered_set<std::string> keys;
  for (const TensorEntry& tensor : state.tensors) keys.insert(tensor.key);
  return std::ranges::any_of(state.tensors, [&](const TensorEntry& tensor) {
    return tensor.key.starts_with(kMoment) && keys.contains(tensor.key.substr(kMoment.size()));
  });
}

bool is_megatron_iteration(Storage& storage, const Path& folder) {
  const Path path = folder / kMetadata;
  if (storage.kind(path) != EntryKind::File) return false;
  try {
    const Json metadata = parse_json(read_text(storage, path, kTextBytes), path.string());
    return metadata.is_object() && metadata.value("sharded_backend", Json()) == "torch_dist";
  } catch (const Error&) {
    return storage.kind(folder / kCommon) == EntryKind::File;  // else another program's file
  }
}

std::optional<double> iteration_of(const Path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kIteration) || !is_number(name.substr(kIteration.size())))
    return std::nullopt;
  return static_cast<double>(std::stoull(name.substr(kIteration.size())));
}

std::optional<Path> latest_iteration(Storage& storage, const Path& run) {
  const Path path = run / kLatest;
  if (storage.kind(path) != EntryKind::File) return std::nullopt;
  std::string text = read_text(storage, path, kTextBytes);
  text.erase(text.find_last_not_of(" \r\n") + 1);
  if (text == "release") return run / text;
  if (!is_number(text)) {
    raise(ErrorCode::Corrupt,
          fmt::format("{}: {} is no iteration", path.string(), unishard::quote(text)),
          "name the folder of one iteration, such as iter_0001000");
  }
  return run / fmt::format("iter_{:0>7}", text);
}

std::vector<std::string> iterations_in(Storage& storage, const Path& run) {
  std::vector<std::string> names;
  for (const Entry& entry : storage.list(run)) {
    if (entry.kind == EntryKind::Directory && iteration_of(entry.name)) names.push_back(entry.name);
  }
  std::ranges::sort(names, {}, [](const std::string& name) { return iteration_of(name); });
  return names;
}

void add_megatron(Storage& storage, const Path& folder, StateDictBuilder& builder) {
  builder.out.has_masters = true;
  name_states_last(builder.out);
  drop_empty_extra_states(builder.out);
  builder.out.step = step_of_distributed(builder.out);
  note_buckets(builder.out);
  if (storage.kind(folder / kCommon) == EntryKind::File) {
    const bool is_read = read_or_lose(builder.out.losses, Role::Setting, std::string(kCommon), [&] {
      const torch::TorchFile common(torch::whole_file(storage, folder / kCommon));
      add_common(common, builder);
      remark_on_iteration(common.root(), folder, builder.out);
    });
    if (is_read) require_settings(builder.out);
  } else {
    builder.out.losses.push_back({Role::Setting, std::string(kCommon),
                                  "it is missing, and with it the iteration, the settings of the "
                                  "parameter groups and the arguments"});
  }
  if (storage.kind(folder / kMetadata) == EntryKind::Missing)
    builder.out.remarks.push_back(fmt::format(
        "{} is missing: the keys of the moments tell that Megatron-Core saved", kMetadata));
  builder.out.producer = {{"library", "megatron-core"}};
  builder.out.complete = [](const StateDict& state, Arrangement& arranged) {
    if (auto line = find_foreign_masters(state, arranged)) arranged.notes.push_back(*line);
  };
}

}  // namespace unishard::converters::dcp
