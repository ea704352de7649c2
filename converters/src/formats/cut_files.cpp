#include "formats/cut_files.hpp"

#include "unishard/format/error.hpp"

#include "containers/pickle_json.hpp"
#include "containers/torch_file.hpp"
#include "formats/torch/reader.hpp"
#include "reading/completeness.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace unishard::converters {
namespace {

/// Files of a rank in a folder `mp_rank_00`.
constexpr std::array<std::string_view, 2> kRankFiles = {"model_optim_rng.pt", "model_rng.pt"};

/// Megatron-LM's random states of each rank, which another number of ranks cannot use.
constexpr const char* kRandomStates = "rng_state";

}  // namespace

void lose_states(const Source& part, deepspeed::Notes& notes, std::string_view why_not) {
  std::size_t states = 0, random = 0;
  for (const TensorInfo& tensor : part.catalog().tensors) {
    if (!deepspeed::is_of_model(tensor))
      ++(tensor.fqn.starts_with(kRandomStates) ? random : states);
  }
  if (random > 0)
    notes.lose({Role::ClientValue, kRandomStates,
                "each part has one of its ranks, and they are not put together"});
  if (states > 0)
    notes.lose({Role::Optimizer, "optimizer",
                fmt::format("{} tensors beside the model in each part are not put together{}{}",
                            states, why_not.empty() ? "" : ": ", why_not)});
}

std::optional<Path> find_rank_file(Storage& storage, const Path& rank_folder) {
  for (const std::string_view name : kRankFiles) {
    if (storage.kind(rank_folder / name) == EntryKind::File) return rank_folder / name;
  }
  return std::nullopt;
}

deepspeed::CutParts open_cut_files(Storage& storage, const std::vector<Path>& files,
                                   deepspeed::Notes& notes, std::string_view why_not) {
  std::set<std::pair<Role, std::string>> told;  // all parts may lose the same
  deepspeed::CutParts parts{.format = "torch", .world_size = files.size(), .has_states = false};
  for (const Path& file : files) {
    const torch::TorchFile archive(torch::whole_file(storage, file));
    require_written_name(file, archive.archive_name());
    parts.names.push_back(file.string());
    parts.sources.push_back(open_torch(storage, file, {}));
    if (parts.sources.size() == 1) lose_states(*parts.sources.front(), notes, why_not);
    for (const Loss& loss : parts.sources.back()->losses()) {
      if (told.emplace(loss.role, loss.name).second) notes.lose(loss);
    }
  }
  return parts;
}

std::optional<std::string> unequal_part(const deepspeed::CutParts& parts) {
  std::map<std::pair<std::string_view, std::string_view>, const Shape*> first;
  for (const TensorInfo& tensor : parts.sources.front()->catalog().tensors)
    if (deepspeed::is_of_model(tensor)) first[{tensor.fqn, tensor.state}] = &tensor.shape;
  for (std::size_t r = 1; r < parts.sources.size(); ++r) {
    for (const TensorInfo& tensor : parts.sources[r]->catalog().tensors) {
      const auto found = first.find({tensor.fqn, tensor.state});
      if (found != first.end() && *found->second != tensor.shape)
        return fmt::format("the parts of {} have different shapes: ({}) in {} and ({}) in {}",
                           unishard::quote(tensor.fqn), fmt::join(*found->second, ", "),
                           parts.names[0], fmt::join(tensor.shape, ", "), parts.names[r]);
    }
  }
  return std::nullopt;
}

std::unique_ptr<Source> join_by_names(deepspeed::CutParts parts, const Json& rules,
                                      const std::string& where, deepspeed::Notes& notes) {
  if (const auto unequal = unequal_part(parts))
    raise(ErrorCode::Corrupt, fmt::format("{}: {}", where, *unequal),
          "use another checkpoint, or find the files that belong together");
  const auto pickle = torch::pickle_of(rules, where);
  deepspeed::CutRules cuts(pickle->root(), where, rules);
  return deepspeed::join_parts(std::move(parts), cuts, where, notes);
}

}  // namespace unishard::converters
