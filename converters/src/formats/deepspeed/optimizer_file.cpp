#include "formats/deepspeed/optimizer_file.hpp"

#include "unishard/format/error.hpp"

#include "containers/object_tree.hpp"
#include "containers/plain_settings.hpp"
#include "core/nested_states.hpp"
#include "formats/deepspeed/layout.hpp"
#include "formats/deepspeed/module_files.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard::converters::deepspeed {
namespace {

std::vector<std::uint64_t> counts(Value value) {
  if (value.is(NodeKind::Int)) return {value.unsigned_int()};
  std::vector<std::uint64_t> out;
  for (std::size_t i = 0; i < value.size(); ++i) out.push_back(value[i].unsigned_int());
  return out;
}

/// Returns the name under which DeepSpeed swapped this tensor to NVMe: the attribute ds_id, if
/// torch kept it.
std::string swap_id_of(Value tensor) {
  const auto attributes = TorchFile::attributes(tensor);
  if (!attributes) return {};
  const auto id = present(*attributes, "ds_id");
  return id && id->is(NodeKind::Str) ? std::string(id->text()) : std::string();
}

FlatState flat_state(const TorchFile& file, const std::string& name, Value tensor) {
  FlatState state{name, tensor_of(file, tensor, name), swap_id_of(tensor)};
  if (state.view.shape.size() != 1) {
    raise(ErrorCode::Corrupt, fmt::format("{}: a flat partition of {} dimensions", file.name(),
                                          state.view.shape.size()));
  }
  return state;
}

void read_masters(const TorchFile& file, Value masters, OptimizerFile& out) {
  for (std::size_t i = 0; i < masters.size(); ++i) {
    FlatGroup group;
    group.master = flat_state(file, std::string(state::kFp32), masters[i]);
    out.groups.push_back(std::move(group));
  }
}

/// Drops the states of an optimizer that keeps tables beside them (8-bit optimizers): a partition
/// of ZeRO cuts parameters anywhere, and the tables' blocks with them.
void drop_tables(FlatGroup& group, Notes& notes) {
  const auto is_table = [&](const FlatState& state) {
    return (state.name.starts_with("qmap") || state.name.starts_with("absmax")) &&
           state.view.elements() != group.master.view.elements();
  };
  const auto table = std::ranges::find_if(group.states, is_table);
  if (table == group.states.end()) return;
  notes.lose({Role::Optimizer, "optimizer_state_dict",
              fmt::format("its states are quantized: {} is a table of the blocks of ZeRO's "
                          "partitions, which no parameter has",
                          table->name)});
  group.states.clear();
  group.scalars.clear();
}

/// torch's {"state", "param_groups"}, or the list of per-group dicts of elastic checkpoints.
void read_base_optimizer(const TorchFile& file, Value optimizer, OptimizerFile& out, Notes& notes) {
  const auto read = [&](std::size_t group, std::optional<Value> entries) {
    FlatGroup& flat = out.groups[group];
    if (!entries) return;
    read_flat_states(file, *entries, flat, notes);
    drop_tables(flat, notes);
  };
  if (optimizer.is_sequence()) {
    if (optimizer.size() != out.groups.size()) {
      raise(ErrorCode::Corrupt, fmt::format("{}: states of {} groups, but {} groups", file.name(),
                                            optimizer.size(), out.groups.size()));
    }
    for (std::size_t i = 0; i < optimizer.size(); ++i) read(i, optimizer[i]);
    return;
  }
  out.settings = read_group_settings(file, optimizer.at("param_groups"), out.members, notes);
  // Stage 3 has several flat groups for each parameter group.
  const bool is_whole = out.stage == 3 ? !out.settings.empty() || out.groups.empty()
                                       : out.settings.size() == out.groups.size();
  if (!is_whole) {
    notes.lose(lost_settings(file.name(), out.groups.size(), out.settings));
    out.members.clear();
  }
  const Value states = optimizer.at("state");
  for (std::size_t i = 0; i < out.groups.size(); ++i) read(i, state_of(states, i));
}

/// Reads param_slice_mappings: for each group, the fragment_address of each parameter. Returns
/// nothing when an entry is of another kind.
std::vector<std::vector<FlatSlice>> read_slices(std::optional<Value> mappings) {
  if (!mappings || !mappings->is_sequence()) return {};
  std::vector<std::vector<FlatSlice>> slices;
  for (std::size_t g = 0; g < mappings->size(); ++g) {
    const Value group = (*mappings)[g];
    if (!group.is_dict()) return {};
    slices.emplace_back();
    for (std::size_t i = 0; i < group.pair_count(); ++i) {
      const Value address = group.value(i);
      if (!address.is(NodeKind::Object)) return {};
      const auto elements = address.field("numel"), begin = address.field("start");
      if (!elements || !begin) return {};
      slices.back().push_back(
          {std::string(group.key(i).string()), elements->unsigned_int(), begin->unsigned_int()});
    }
  }
  return slices;
}

}  // namespace

std::optional<Value> state_of(Value state, std::uint64_t index) {
  for (std::size_t i = 0; i < state.pair_count(); ++i) {
    const Value key = state.key(i);
    if (key.is(NodeKind::Int) && key.integer() == static_cast<std::int64_t>(index))
      return state.value(i);
  }
  return std::nullopt;
}

namespace {

/// Returns nullopt, with a loss, for a tensor that is not one dense array.
std::optional<TensorView> view_of_state(const TorchFile& file, Value value, const std::string& name,
                                        Notes& notes) {
  try {
    return tensor_of(file, value, name);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Unsupported) throw;
    notes.lose({Role::Optimizer, name, error.what()});
    return std::nullopt;
  }
}

/// Reads a state that is no tensor. Those of a parameter may be dicts; a flat partition has none.
void read_other(const TorchFile& file, Value value, const std::string& name,
                std::optional<std::size_t> dimensions, std::vector<FlatState>& states,
                std::optional<std::int64_t>& step, Notes& notes) {
  const bool has_tensors = !torch::describe(value, file.pickle().bytes().size()).tensors.empty();
  if (!has_tensors) return notes.lose({Role::State, name, "it is not a tensor"});
  const bool is_nested = state_levels(name).size() > 1;
  if (dimensions || !value.is_dict() || is_nested)
    return notes.lose({Role::Optimizer, name, "it is an object of tensors"});
  std::vector<FlatState> members;
  read_states(file, value, dimensions, members, step, notes);
  for (FlatState& member : members) {
    member.name = member_state(name, member.name);
    states.push_back(std::move(member));
  }
}

/// Returns the name of a state in the catalog: one that is called as the catalog calls the model's
/// own tensors gets another, with a note.
std::string state_name(std::string name, Notes& notes) {
  if (!is_reserved_state(name)) return name;
  RenamedState renamed = rename_reserved_state(name);
  notes.add(std::move(renamed.note));
  return std::move(renamed.name);
}

}  // namespace

void read_states(const TorchFile& file, Value entries, std::optional<std::size_t> dimensions,
                 std::vector<FlatState>& states, std::optional<std::int64_t>& step, Notes& notes) {
  for (std::size_t i = 0; i < entries.pair_count(); ++i) {
    const std::string name = state_name(std::string(entries.key(i).string()), notes);
    const Value value = entries.value(i);
    if (name == "step") {
      step = step_of(file, value);
    } else if (value.is_none()) {
      continue;  // a state that the optimizer does not use
    } else if (!is_state_name(name)) {
      notes.lose({Role::State, name, "UniShard has no such name of a state"});
    } else if (!TorchFile::is_tensor(value)) {
      read_other(file, value, name, dimensions, states, step, notes);
    } else if (const auto view = view_of_state(file, value, name, notes)) {
      const std::size_t found = view->shape.size();
      if (dimensions && found != 0 && found != *dimensions) {
        notes.lose({Role::State, name, "no values of a flat partition", view->shape});
      } else {
        states.push_back({name, *view, swap_id_of(value)});
      }
    }
  }
}

void read_flat_states(const TorchFile& file, Value entries, FlatGroup& group, Notes& notes) {
  std::vector<FlatState> all;
  read_states(file, entries, 1, all, group.step, notes);
  for (FlatState& state : all)
    (state.view.shape.empty() ? group.scalars : group.states).push_back(std::move(state));
}

Json read_group_settings(const TorchFile& file, Value param_groups,
                         std::vector<std::vector<std::uint64_t>>& members, Notes& notes) {
  Json groups = Json::array();
  members.clear();
  for (std::size_t i = 0; i < param_groups.size(); ++i) {
    const Value group = param_groups[i];
    Json settings = Json::object();
    for (std::size_t k = 0; k < group.pair_count(); ++k) {
      const std::string key(group.key(k).string());
      if (key == "params") continue;
      settings[key] = plain_json(file, group.value(k), fmt::format("param_groups.{}.{}", i, key),
                                 notes, TorchTypes::Kept);
    }
    std::vector<std::string> lines;
    Losses losses;
    torch::make_settings_plain(settings, i, lines, losses);
    for (std::string& line : lines) notes.add(std::move(line));
    for (Loss& loss : losses) notes.lose(std::move(loss));
    groups.push_back(std::move(settings));
    const auto params = present(group, "params");
    const bool numbered =
        params && params->is_sequence() && (params->size() == 0 || (*params)[0].is(NodeKind::Int));
    members.push_back(numbered ? counts(*params) : std::vector<std::uint64_t>());
  }
  return groups;
}

Loss lost_settings(const std::string& file, std::size_t groups, Json& settings) {
  Loss loss{.role = Role::Setting,
            .name = "param_groups",
            .why = fmt::format("{} has states of {} groups, and the settings of {}: nothing tells "
                               "which are whose",
                               file, groups, settings.size()),
            .is_broken = true};
  settings = nullptr;
  return loss;
}

Json read_loss_scaler(const TorchFile& file, std::optional<Value> scaler, Notes& notes) {
  if (!scaler) return nullptr;
  if (scaler->is_dict()) return plain_json(file, *scaler, "loss_scaler", notes);
  const auto fields = scaler->state();
  if (!fields || !fields->is_dict()) {
    notes.lose({Role::Setting, "loss_scaler", "an object without fields"});
    return nullptr;
  }
  return plain_json(file, *fields, "loss_scaler", notes);
}

OptimizerFile read_optimizer_file(const TorchFile& file, Notes& notes) {
  const Value inner = file.root().at("optimizer_state_dict");
  OptimizerFile out;
  out.name = file.name();
  out.tells_its_name = tells_its_name(file);
  if (const auto version = present(file.root(), "ds_version")) out.version = version->string();
  const auto full = present(inner, "fp32_flat_groups");
  const auto partitioned = present(inner, "single_partition_of_fp32_groups");
  if (!full && !partitioned) {
    raise(ErrorCode::Unsupported,
          fmt::format("{}: neither fp32_flat_groups nor single_partition_of_fp32_groups: not the "
                      "optimizer file of a ZeRO stage that is read",
                      file.name()));
  }
  const auto stage = present(inner, "zero_stage");
  out.tells_stage = stage.has_value();
  out.stage = stage ? zero_stage(*stage) : full ? 3 : 1;
  if ((out.stage == 3) != full.has_value() || out.stage == 0) {
    raise(ErrorCode::Corrupt, fmt::format("{}: its zero_stage is {}, but its partitions are those "
                                          "of stage {}",
                                          file.name(), out.stage, full ? "3" : "1 or 2"));
  }
  read_masters(file, full ? *full : *partitioned, out);
  read_base_optimizer(file, inner.at(full ? "optimizer_state_dict" : "base_optimizer_state"), out,
                      notes);
  if (const auto partitions = present(inner, "partition_count"))
    out.partition_counts = counts(*partitions);
  if (const auto gaps = present(inner, "param_alignment_paddings")) {
    for (std::size_t i = 0; i < gaps->size(); ++i) out.gaps.push_back(counts((*gaps)[i]));
  }
  if (const auto shapes = present(inner, "param_shapes")) out.param_shapes = shape_groups(*shapes);
  out.slices = read_slices(present(inner, "param_slice_mappings"));
  out.loss_scaler = read_loss_scaler(file, present(inner, "loss_scaler"), notes);
  return out;
}

}  // namespace unishard::converters::deepspeed
