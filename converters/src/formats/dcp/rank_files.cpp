#include "formats/dcp/rank_files.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/limits.hpp"

#include "containers/object_tree.hpp"
#include "formats/dcp/flat_like.hpp"
#include "formats/dcp/flat_parameters.hpp"
#include "formats/dcp/keys.hpp"
#include "formats/dcp/rank_optimizer.hpp"
#include "formats/dcp/state_files.hpp"
#include "formats/dcp/training_object.hpp"
#include "formats/dcp/verl.hpp"
#include "reading/broken_files.hpp"
#include "reading/completeness.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace unishard::converters::dcp {
namespace {

struct RankFileName {
  std::string start;  // up to the rank
  std::uint64_t rank = 0, world_size = 0;
};

/// Returns the number after the last `mark` of a name.
std::optional<std::uint64_t> number_after(std::string_view name, std::string_view mark) {
  const std::size_t at = name.rfind(mark);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view rest = name.substr(at + mark.size());
  rest = rest.substr(0, std::min(rest.find_first_not_of("0123456789"), rest.size()));
  if (!is_number(rest)) return std::nullopt;
  return std::stoull(std::string(rest));
}

constexpr std::string_view kWorldSizeMark = "world_size_";

std::optional<RankFileName> parse_file_name(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string::npos) return std::nullopt;
  const std::string_view ending = std::string_view(name).substr(dot);
  if (ending != ".pt" && ending != ".bin" && ending != ".pth") return std::nullopt;
  const std::string_view stem = std::string_view(name).substr(0, dot);
  const std::size_t digits = stem.find_last_not_of("0123456789") + 1;
  const std::string_view start = stem.substr(0, digits), rank = stem.substr(digits);
  if (!(start.ends_with("rank") || start.ends_with("rank_")) || !is_number(rank))
    return std::nullopt;
  const auto world_size = number_after(start, kWorldSizeMark);
  const bool says_size = start.find(kWorldSizeMark) != std::string_view::npos;
  if (says_size && !world_size) return std::nullopt;  // a number that no job has
  return RankFileName{std::string(start), std::stoull(std::string(rank)), world_size.value_or(0)};
}

bool has_name_of_model(std::string_view start) {
  return start.starts_with("model") || start.starts_with("pytorch_model");
}
bool names_optimizer(std::string_view start) { return start.starts_with("optim"); }
bool is_extra(std::string_view start) { return start.starts_with("extra_state"); }

/// Returns the first rank without a file; nullopt when all have one.
std::optional<std::uint64_t> missing_rank(const RankFileGroup& group, std::uint64_t ranks) {
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    if (!group.files.contains(rank)) return rank;
  }
  return std::nullopt;
}

std::uint64_t ranks_of(const RankFileGroup& group) {
  return std::max(group.world_size, group.files.rbegin()->first + 1);
}

void check_doubled(const Path& folder, const RankFileGroup& group) {
  if (!group.doubled.first.empty())
    raise(ErrorCode::Unsupported,
          fmt::format("{}: {} and {} are both the file of one rank", folder.string(),
                      group.doubled.first, group.doubled.second),
          "put the one that is meant into a folder without the other");
}

void check_complete(const Path& folder, const std::string& start, const RankFileGroup& group) {
  check_doubled(folder, group);
  if (const auto rank = missing_rank(group, ranks_of(group)))
    raise(ErrorCode::Corrupt,
          fmt::format("{}: the file {}{} of {} is missing", folder.string(), start, *rank,
                      ranks_of(group)),
          "put the files of all ranks into one folder");
}

/// A file beside those of the model may be missing: the model is whole without it. Returns true
/// when none is.
bool is_whole(const std::string& start, const RankFileGroup& group, std::uint64_t ranks, Role role,
              Losses& losses) {
  const auto rank = missing_rank(group, ranks);
  if (rank)
    losses.push_back({.role = role,
                      .name = fmt::format("{}*", start),
                      .why = fmt::format("missing the file of rank {} of {}", *rank, ranks),
                      .is_broken = role == Role::Optimizer});
  return !rank;
}

/// Returns the model in the object of a rank's file, which may be a training state.
torch::Value model_in(const torch::TorchFile& file, const std::string& key) {
  const torch::Value root = file.root();
  const auto model = root.is_dict() ? root.find(key) : std::nullopt;
  return model && model->is_dict() ? *model : root;
}

/// Adds the members of a training state whose "model" holds flat parameters. Returns those that are
/// optimizers of these, which are not added.
std::vector<std::string> add_flat_training(const torch::TorchFile& file, std::uint64_t rank,
                                           StateDictBuilder& builder) {
  std::vector<std::string> optimizers;
  const torch::Value root = file.root();
  for (std::size_t i = 0; i < root.pair_count(); ++i) {
    const std::string name = torch::path_part(root.key(i));
    if (is_optimizer(root.value(i))) {
      optimizers.push_back(name);
    } else {
      builder.add_part(name, {{name, false}}, file, root.value(i), rank);
    }
  }
  return optimizers;
}

/// Adds the model of a rank's file, or the members of a training state that it holds. Returns those
/// that are optimizers of flat parameters, which are not added.
std::vector<std::string> add_rank(const std::string& key, const torch::TorchFile& file,
                                  std::uint64_t rank, StateDictBuilder& builder) {
  const torch::Value root = file.root();
  const auto model = root.is_dict() ? root.find(key) : std::nullopt;
  const bool has_model = model && model->is_dict();
  if (has_model && builder.like != nullptr) return add_flat_training(file, rank, builder);
  if (has_model || is_training_object(root)) {
    add_training_object(file, rank, builder);
  } else {
    builder.add_object(key, {{key, false}}, file, rank);
  }
  return {};
}

/// Every rank has its own copy of a tensor that is no DTensor.
void note_lone_tensors(StateDict& state) {
  std::vector<const TensorEntry*> lone;
  for (const TensorEntry& tensor : state.tensors) {
    if (!tensor.is_distributed && tensor.chunks.size() == 1) lone.push_back(&tensor);
  }
  if (lone.empty()) return;
  state.notes.push_back(fmt::format(
      "the file of rank {} alone has {}{}", lone[0]->chunks[0].rank, unishard::quote(lone[0]->key),
      lone.size() > 1 ? fmt::format(", and {} more tensors are in one file", lone.size() - 1)
                      : ""));
}

/// Whether the files of an optimizer can be read. A model needs none: one that cannot be is lost.
bool can_read_optimizer(Storage& storage, const RankFileGroup& group, StateDictBuilder& builder) {
  bool can_read = true;
  for (const auto& [rank, path] : group.files) {
    const auto object = open_state(storage, builder, path, Role::Optimizer);
    can_read &= object && read_or_lose(builder.out.losses, Role::Optimizer,
                                       path.filename().string(), [&, &path = path] {
                                         require_written_name(path, object->archive_name());
                                       });
  }
  return can_read;
}

/// Looks for flat parameters in all files.
RankFlatFiles find_flat(const RankFileGroup& group, const std::string& key,
                        StateDictBuilder& builder) {
  RankFlatFiles found(*builder.like);
  for (const auto& [rank, path] : group.files) {
    const torch::TorchFile file = open_rank_object(path, builder);
    found.add_file(file, model_in(file, key), rank);
  }
  found.take(key, builder);
  return found;
}

/// Reads the files of a model, whose names begin with `start`.
void read_group(const RankFileGroup& group, const std::string& start, StateDictBuilder& builder) {
  const std::string key = "model";
  builder.out.world_size =
      std::max(builder.out.world_size, static_cast<std::uint32_t>(group.files.size()));
  if (group.world_size == 0 && group.files.size() == 1)
    builder.out.notes.push_back(
        fmt::format("{} is the only file of a rank, and its name does not say how many ranks there "
                    "were: others may be missing",
                    group.files.begin()->second.filename().string()));
  std::optional<RankFlatFiles> flat;
  if (builder.like != nullptr) flat.emplace(find_flat(group, key, builder));
  std::vector<std::string> optimizers;
  for (const auto& [rank, path] : group.files) {
    builder.finds_second_keys = true;
    try {
      const torch::TorchFile object = open_rank_object(path, builder);
      optimizers = add_rank(key, object, rank, builder);
    } catch (const Error&) {
      // FSDP1 with use_orig_params stores each rank's pieces of the parameters beside the flat
      // ones, under the parameters' names and in any size.
      const auto known = std::ranges::find_if(builder.out.tensors, is_flat_parameter);
      if (flat || known == builder.out.tensors.end()) throw;
      refuse_flat_parameter(*known, path.string(),
                            "the names beside it are of pieces of parameters");
    }
  }
  builder.finds_second_keys = false;
  builder.settle_ties();
  if (flat) {
    const Path folder = group.files.begin()->second.parent_path();
    builder.flat_units = take_apart_like(builder.out, folder.string(), *builder.like, *flat);
    for (const std::string& name : optimizers)
      read_rank_optimizer(group, fmt::format("{} in {}", name, start), builder, name);
  }
  if (group.files.size() > 1) note_lone_tensors(builder.out);
}

/// Returns whether a file of a rank holds DTensors or ShardedTensors, which say where they lie in
/// the whole.
bool has_distributed_tensors(Storage& storage, const Path& path) {
  try {
    const torch::TorchFile file(torch::whole_file(storage, path));
    return std::ranges::any_of(file.pickle().globals(), [](const std::string& name) {
      return (name.starts_with("torch.distributed.tensor.") && name.ends_with("DTensor")) ||
             name == "torch.distributed._shard.sharded_tensor.api.ShardedTensor";
    });
  } catch (const Error&) {
    return false;  // what asks for a model names the defect
  }
}

/// `ckpt_world_size_2_rank_0.pt`, `rank_0.pt`: names that tell no model.
void find_models(Storage& storage, std::map<std::string, RankFileGroup>& groups) {
  for (auto& [start, group] : groups) group.are_models = has_name_of_model(start);
  if (std::ranges::any_of(groups, [](const auto& each) { return each.second.are_models; })) return;
  const auto is_other = [](const auto& each) {
    return !names_optimizer(each.first) && !is_extra(each.first);
  };
  if (std::ranges::count_if(groups, is_other) != 1) return;
  RankFileGroup& only = std::ranges::find_if(groups, is_other)->second;
  only.are_models = has_distributed_tensors(storage, only.files.begin()->second);
}

}  // namespace

std::map<std::string, RankFileGroup> find_rank_files(Storage& storage, const Path& folder) {
  std::map<std::string, RankFileGroup> groups;
  for (const Entry& entry : storage.list(folder)) {
    const auto name = parse_file_name(entry.name);
    if (entry.kind != EntryKind::File || !name || name->rank >= limits::kWorldSize ||
        name->world_size > limits::kWorldSize)
      continue;
    RankFileGroup& group = groups[name->start];
    group.world_size = name->world_size;
    const auto [file, is_new] = group.files.emplace(name->rank, folder / entry.name);
    if (!is_new) group.doubled = {file->second.filename().string(), entry.name};
  }
  find_models(storage, groups);
  return groups;
}

bool has_rank_files(Storage& storage, const Path& folder) {
  return std::ranges::any_of(find_rank_files(storage, folder),
                             [](const auto& each) { return each.second.are_models; });
}

namespace {

/// Files of two jobs, or of two saves on other numbers of ranks, are no one model.
void require_one_model(const Path& folder, const std::map<std::string, RankFileGroup>& groups) {
  std::vector<std::string> models;
  for (const auto& [start, group] : groups) {
    if (group.are_models) models.push_back(start);
  }
  if (models.size() < 2) return;
  raise(ErrorCode::Unsupported,
        fmt::format("{} holds the rank files of several models or saves: those that begin with {} "
                    "and with {}",
                    folder.string(), unishard::quote(models[0]), unishard::quote(models[1])),
        "put the files of the one that is meant into a folder of their own");
}

/// accelerate numbers the models of a job; the second is no model of the first optimizer.
void require_first_model(const Path& folder, std::string_view start) {
  const auto number = number_after(start, "pytorch_model_fsdp_");
  if (number.value_or(0) == 0) return;
  raise(ErrorCode::Corrupt,
        fmt::format("{}: the files of model {} are there, and those of the first, "
                    "pytorch_model_fsdp_0_rank0 and on, are missing",
                    folder.string(), *number),
        "bring them back, or put the files of the other model into a folder of their own");
}

}  // namespace

torch::TorchFile open_rank_object(const Path& path, StateDictBuilder& builder) {
  const std::shared_ptr<const File> file = builder.open(path);
  torch::TorchFile object({file, 0, file->size()});
  require_written_name(path, object.archive_name());
  return object;
}

std::vector<Path> read_rank_files(Storage& storage, const Path& folder, StateDictBuilder& builder) {
  std::vector<Path> files;
  builder.ranks_repeat = true;
  builder.out.module_part = ModulePart::Replica;  // which torch.save writes as well
  const std::map<std::string, RankFileGroup> groups = find_rank_files(storage, folder);
  require_one_model(folder, groups);
  std::uint64_t ranks = 0;  // of the model
  for (const auto& [start, group] : groups) {
    for (const auto& [rank, path] : group.files) files.push_back(path);
    if (!group.are_models) continue;
    require_first_model(folder, start);
    check_complete(folder, start, group);
    read_group(group, start, builder);
    ranks = ranks_of(group);
  }
  for (const auto& [start, group] : groups) {
    Losses& losses = builder.out.losses;
    const std::uint64_t wanted = std::max(ranks, ranks_of(group));
    if (group.are_models) continue;
    if (names_optimizer(start)) {
      check_doubled(folder, group);
      if (is_whole(start, group, wanted, Role::Optimizer, losses) &&
          can_read_optimizer(storage, group, builder))
        read_rank_optimizer(group, start, builder);
    } else if (is_extra(start)) {
      is_whole(start, group, wanted, Role::Setting, losses);
      add_extra_state(group, builder);
    } else {
      losses.push_back(
          {Role::SideFile, fmt::format("{}0 to {}", start, group.files.rbegin()->first)});
    }
  }
  if (const auto config = note_verl(storage, folder, builder.out)) files.push_back(*config);
  return files;
}

}  // namespace unishard::converters::dcp
