#include "formats/deepspeed/expert_stage0.hpp"

#include "unishard/format/error.hpp"

#include "containers/equal_elements.hpp"
#include "formats/deepspeed/expert_groups.hpp"
#include "formats/deepspeed/rank_reader.hpp"
#include "formats/deepspeed/shard_copies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace unishard::converters::deepspeed {
namespace {

/// Returns the first elements of a state.
std::vector<std::byte> first_bytes(const StatePieces& state) {
  constexpr std::uint64_t kCompared = 256;
  if (state.pieces.empty()) return {};
  const ViewPiece& piece = state.pieces.front();
  return sampled_bytes(piece.view, piece.first, std::min(kCompared, piece.range.size()));
}

class ExpertStage0 {
 public:
  ExpertStage0(const std::shared_ptr<FilePool>& pool, const TorchFile& file, const ModelFile& model,
               const ExpertFiles& experts, Notes& notes)
      : pool_(pool), file_(file), model_(model), experts_(experts), notes_(notes) {}

  Stage0Optimizer read() {
    const TorchFile first = open(experts_.optimizers.front().second);
    const std::set<std::uint64_t> sizes = sizes_of(first);
    check_alike(first);
    if (sizes.empty()) {
      lose_without_sizes(first);
      return {};
    }
    check_complete(Path(first.name()).parent_path(), experts_.optimizers, *sizes.rbegin(),
                   "expert-parallel optimizer", "the name ep_size_N of a parameter group");
    if (sizes.size() > 1) {
      lose("the experts are in groups of several sizes, and the states have no names");
      return {};
    }
    for (const auto& [rank, path] : experts_.optimizers) {
      if (!add_rank(open(path), rank, *sizes.begin())) return {};
    }
    check_first(*sizes.begin());
    return finish();
  }

 private:
  TorchFile open(const Path& path) const { return open_rank_file(pool_, path); }

  void lose(std::string why) { notes_.lose({Role::Optimizer, "optimizer", std::move(why)}); }

  static bool has_optimizer(const TorchFile& file) {
    return present(file.root(), "optimizer").has_value();
  }

  /// Checks that all ranks have an optimizer, or none.
  void check_alike(const TorchFile& first) const {
    for (const auto& [rank, path] : experts_.optimizers) {
      const TorchFile file = open(path);
      if (has_optimizer(file) != has_optimizer(first))
        raise_two_saves(first.name(), file.name(), "only one has an optimizer");
    }
  }

  /// Without the number of expert ranks, no state has a name. A run without an optimizer has none
  /// in the model file either.
  void lose_without_sizes(const TorchFile& first) {
    if (has_optimizer(first)) {
      lose(
          fmt::format("no parameter group in {} is one of experts (moe, and a name ep_size_N): "
                      "nothing tells which states are those of the experts",
                      first.name()));
    } else if (has_optimizer(file_)) {
      lose(
          fmt::format("{} has none, and {} has that of the first rank: the states of the experts "
                      "are gone, and the others have no names without them",
                      first.name(), file_.name()));
    }
  }

  /// Returns the numbers of expert ranks of the groups with experts; none without an optimizer.
  std::set<std::uint64_t> sizes_of(const TorchFile& file) {
    std::set<std::uint64_t> sizes;
    const auto optimizer = present(file.root(), "optimizer");
    if (!optimizer) return sizes;
    const auto wrapped = present(*optimizer, "optimizer_state_dict");
    std::vector<std::vector<std::uint64_t>> members;
    const Json settings = read_group_settings(
        file, (wrapped ? *wrapped : *optimizer).at("param_groups"), members, notes_);
    for (const Json& group : settings) sizes.insert(expert_ranks_of(group, file.name()));
    sizes.erase(0);
    return sizes;
  }

  /// Returns the model as expert rank `rank` of `size` has it.
  ModelFile part_of(std::uint64_t rank, std::uint64_t size) const {
    ModelFile part = model_;
    std::erase_if(part.module, [&](const NamedView& entry) {
      const auto name = split_expert(entry.name);
      const ExpertLayer* layer = name ? experts_.find(name->prefix) : nullptr;
      return layer != nullptr &&
             name->number / std::max<std::uint64_t>(layer->experts / size, 1) != rank;
    });
    return part;
  }

  /// Returns false when the states have no names.
  bool add_rank(const TorchFile& file, std::uint64_t rank, std::uint64_t size) {
    for (const ExpertLayer& layer : experts_.layers) {
      if (layer.experts % size == 0) continue;
      raise(ErrorCode::Corrupt,
            fmt::format("{}: {} experts are called {}<number>, and there are {} "
                        "expert ranks",
                        file.name(), layer.experts, layer.prefix, size));
    }
    Stage0Optimizer part = read_stage0(file, part_of(rank, size), true, notes_);
    if (!part.is_there) return false;
    if (parts_.empty()) {
      first_name_ = file.name();
    } else {
      check_others(part, file.name());
    }
    copies_.add(file.name(), states_of_experts(part));
    parts_.push_back(std::move(part));
    return true;
  }

  /// Returns the states that tell ranks apart. Those of one value tell nothing.
  static std::vector<TensorView> states_of_experts(const Stage0Optimizer& part) {
    std::vector<TensorView> views;
    for (const Parameter& parameter : part.parameters.all()) {
      if (!split_expert(parameter.fqn)) continue;
      for (const StatePieces& state : parameter.states) {
        if (state.state == state::kFp32 || state.state == state::kWeights) continue;
        for (const ViewPiece& piece : state.pieces) views.push_back(piece.view);
      }
    }
    return views;
  }

  /// The model file has the optimizer of the first rank again.
  void check_first(std::uint64_t size) const {
    Notes unused;  // the states were read before
    try {
      const Stage0Optimizer again = read_stage0(file_, part_of(0, size), true, unused);
      if (again.is_there) check_states(again, file_.name(), true);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Unsupported) throw;  // else they have no names
    }
  }

  /// Checks that the ranks have as many parameters and states, and the same states of parameters
  /// that are not experts.
  void check_others(const Stage0Optimizer& part, const std::string& name) const {
    const Stage0Optimizer& first = parts_.front();
    if (part.settings != first.settings)
      raise_two_saves(first_name_, name, "the settings of their parameter groups differ");
    const auto [parameters, states] = counts_of(first);
    const auto [other_parameters, other_states] = counts_of(part);
    if (parameters != other_parameters)
      raise_two_saves(
          first_name_, name,
          fmt::format("their optimizers list {} and {} parameters", parameters, other_parameters));
    check_states(part, name, false);
    if (states != other_states)
      raise_two_saves(first_name_, name,
                      fmt::format("their experts have {} and {} states", states, other_states));
  }

  /// Returns the number of parameters, and of the states of experts.
  static std::pair<std::size_t, std::size_t> counts_of(const Stage0Optimizer& part) {
    std::size_t states = 0;
    for (const Parameter& parameter : part.parameters.all()) {
      if (split_expert(parameter.fqn)) states += parameter.states.size();
    }
    return {part.parameters.all().size(), states};
  }

  /// Checks that `part` has the states of the first rank, with those of its experts or without.
  void check_states(const Stage0Optimizer& part, const std::string& name, bool has_experts) const {
    const Stage0Optimizer& first = parts_.front();
    for (const Parameter& parameter : part.parameters.all()) {
      if (!has_experts && split_expert(parameter.fqn)) continue;
      const auto found = first.parameters.find(parameter.fqn);
      if (!found) raise_two_saves(first_name_, name, "only one has " + parameter.fqn);
      const auto& states = first.parameters.all()[*found].states;
      const bool is_same = std::ranges::equal(
          states, parameter.states, [](const StatePieces& a, const StatePieces& b) {
            return a.state == b.state && first_bytes(a) == first_bytes(b);
          });
      if (!is_same)
        raise_two_saves(first_name_, name, "the states of " + parameter.fqn + " differ");
    }
  }

  /// Puts the ranks' parameters together, the experts of each layer in ascending order.
  Stage0Optimizer finish() {
    std::vector<Parameter*> all;
    for (Stage0Optimizer& part : parts_) {
      for (Parameter& parameter : part.parameters.all()) {
        if (&part == &parts_.front() || split_expert(parameter.fqn)) all.push_back(&parameter);
      }
    }
    std::ranges::stable_sort(all, {}, [&](const Parameter* parameter) {
      return std::pair(parameter->group, layer_of(parameter->fqn));
    });
    Stage0Optimizer out;
    out.settings = parts_.front().settings;
    out.loss_scaler = parts_.front().loss_scaler;
    out.is_there = true;
    for (const Stage0Optimizer& part : parts_)
      out.steps.insert(out.steps.end(), part.steps.begin(), part.steps.end());
    for (Parameter* parameter : all) {
      const std::size_t added =
          out.parameters.add(parameter->fqn, parameter->shape, parameter->group);
      out.parameters.all()[added].states = std::move(parameter->states);
    }
    return out;
  }

  std::size_t layer_of(const std::string& fqn) const {
    const auto name = split_expert(fqn);
    const ExpertLayer* layer = name ? experts_.find(name->prefix) : nullptr;
    return layer == nullptr ? 0 : static_cast<std::size_t>(layer - experts_.layers.data()) + 1;
  }

  const std::shared_ptr<FilePool>& pool_;
  const TorchFile& file_;  ///< the model file
  const ModelFile& model_;
  const ExpertFiles& experts_;
  Notes& notes_;
  std::string first_name_;
  std::vector<Stage0Optimizer> parts_;  ///< by expert rank
  ShardCopies copies_;
};

}  // namespace

Stage0Optimizer read_expert_stage0(const std::shared_ptr<FilePool>& pool, const TorchFile& file,
                                   const ModelFile& model, const ExpertFiles& experts,
                                   Notes& notes) {
  return ExpertStage0(pool, file, model, experts, notes).read();
}

std::function<std::uint32_t(const Path&)> expert_ranks_of_files(const ExpertFiles& experts) {
  std::vector<std::uint64_t> counts;  // of experts, by layer
  counts.reserve(experts.layers.size());
  for (const ExpertLayer& layer : experts.layers) counts.push_back(layer.experts);
  return [counts, ranks = experts.optimizers.size()](const Path& file) {
    const FileName name = parse_file_name(file.filename().string());
    const bool is_expert = name.role == FileRole::Expert && name.layer < counts.size();
    const std::uint64_t of_rank = is_expert ? counts[name.layer] / ranks : 0;
    return of_rank == 0 ? rank_of_file(file) : static_cast<std::uint32_t>(name.expert / of_rank);
  };
}

}  // namespace unishard::converters::deepspeed
