// Writes the ordinary folder of a run that is parallel beside ZeRO. Each of its model-parallel
// ranks has the files of a run of its own, whose tensors are parts of the whole ones: they are
// planned as such files, and the plan is then told of the whole tensors.
#include "formats/deepspeed/writer_parallel.hpp"

#include "unishard/converters/cut_patterns.hpp"
#include "unishard/format/error.hpp"

#include "formats/deepspeed/rank_cuts.hpp"
#include "formats/deepspeed/stage_layers.hpp"
#include "formats/deepspeed/writer_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

namespace unishard::converters {
namespace deepspeed_sink {
namespace {

/// The tensors of a rank, by number in its catalog.
struct RankTensors {
  Catalog catalog;
  struct Origin {
    TensorIndex whole = 0;  ///< in the catalog of whole tensors
    const RankShare* share = nullptr;
  };
  std::vector<Origin> origins;
};

/// Tells a plan about a rank's tensors of the whole ones.
class PlacementMap {
 public:
  /// Lifetime: both must outlive this object.
  PlacementMap(const Catalog& whole, const RankTensors& rank) : whole_(whole), rank_(rank) {}

  void add(const torch::Placement& local, torch::OutputPlan& plan) const {
    const auto& [whole, share] = rank_.origins[local.tensor];
    torch::Placement placement = local;
    placement.tensor = whole;
    if (share->is_whole) return plan.placements.push_back(std::move(placement));
    std::uint64_t at = local.range.begin, begin = 0;  // elements of the rank's tensor
    for (const unishard::Box& box : share->boxes) {
      const ElementRange held{begin, begin + element_count(box.sizes)};
      const ElementRange part = intersect(held, local.range);
      begin = held.end;
      if (part.empty()) continue;
      placement.offset = local.offset + (part.begin - local.range.begin) * size_of(local.dtype);
      add_box(placement, box, {part.begin - held.begin, part.end - held.begin}, plan);
      at = part.end;
    }
    if (at == local.range.end) return;  // what is left is padding
    const std::uint64_t width = size_of(local.dtype);
    plan.constants.push_back({local.archive,
                              local.storage,
                              local.offset + (at - local.range.begin) * width,
                              {},
                              (local.range.end - at) * width});
  }

 private:
  void add_box(torch::Placement placement, const unishard::Box& box, ElementRange own,
               torch::OutputPlan& plan) const {
    auto map = std::make_shared<const ElementMap>(whole_.tensors[placement.tensor].shape, box);
    placement.range = map->bounds_of(own);
    if (placement.range.size() != own.size()) {
      placement.own = own;
      placement.box = std::move(map);
    }
    plan.placements.push_back(std::move(placement));
  }

  const Catalog& whole_;
  const RankTensors& rank_;
};

/// Keeps the parameters of a stage in the groups, in the order of DeepSpeed's PipelineModule.
void keep_groups(Catalog& catalog, const std::set<std::string>& kept, const StageLayers& layers,
                 std::uint32_t stage) {
  if (!catalog.groups.is_array()) return;
  const auto place = [&](const Json& name) {
    return layers.place(stage, name.get_ref<const std::string&>());
  };
  for (Json& group : catalog.groups) {
    if (!group.is_object() || !group.contains("params") || !group["params"].is_array()) continue;
    Json::array_t names;
    for (const Json& name : group["params"]) {
      if (name.is_string() && kept.contains(name.get_ref<const std::string&>()))
        names.push_back(name);
    }
    std::ranges::stable_sort(names, {}, place);
    group["params"] = std::move(names);
  }
}

class ParallelDraft {
 public:
  /// Lifetime: both must outlive this object.
  ParallelDraft(const SavedRun& whole, const ParallelRanks& ranks)
      : whole_(whole), tensor_ranks_(ranks.tensor.value_or(1)) {
    if (ranks.tensor) cuts_.emplace(whole.catalog, ranks);
    for (const ModuleEntry& entry : whole.model.module) names_.insert(entry.fqn);
    find_shares();
    if (ranks.has_pipeline()) {
      layers_.emplace(whole.model, ranks, [this](const SinkParameter& parameter) {
        return element_count(shares_[parameter.master].front().shape);
      });
      check_stage();
    }
    check_world_size();
  }

  OutputDraft make() {
    for (std::uint32_t p = 0; p < stages(); ++p)
      for (std::uint32_t t = 0; t < tensor_ranks_; ++t) add_rank(p, t);
    if (cuts_) draft_.plan.remarks = cuts_->remarks();
    if (layers_) draft_.plan.remarks.push_back(layers_->remark());
    return std::move(draft_);
  }

 private:
  std::uint32_t stages() const { return layers_ ? layers_->stages() : 1; }

  void check_world_size() const {
    const std::uint32_t world_size = whole_.catalog.world_size;
    const std::uint64_t parallel = std::uint64_t{tensor_ranks_} * stages();
    if (world_size % parallel != 0) {
      raise(ErrorCode::InvalidArgument,
            fmt::format("{} stages times {} tensor-parallel ranks do not divide the {} ranks of "
                        "the result",
                        stages(), tensor_ranks_, world_size),
            "--world-size counts all ranks: stages times tensor-parallel times data-parallel ones");
    }
  }

  void check_stage() const {
    if (whole_.catalog.stage > 1) {
      raise(ErrorCode::InvalidArgument,
            fmt::format("a pipeline at stage {} of ZeRO, which DeepSpeed does not have",
                        whole_.catalog.stage),
            "pass --stage 1 or 0; nothing was written");
    }
    if (whole_.catalog.stage == 0 && whole_.model.precision != DType::Float32) {
      raise(
          ErrorCode::Unsupported,
          fmt::format("a pipeline with 16-bit weights at stage 0 of ZeRO, which is not written: {}",
                      whole_.model.precision == DType::BFloat16
                          ? "DeepSpeed does not load what it writes itself of such a run"
                          : "in float16, its fp32 masters have no names"),
          "pass --stage 1; nothing was written");
    }
    if (whole_.catalog.stage == 0 && (layers_->has_tied() || whole_.model.has_frozen())) {
      raise(ErrorCode::Unsupported,
            "stage 0 of a pipeline stores states without names, and tied modules or frozen layers "
            "leave a choice of which layers are whose",
            "pass --stage 1; nothing was written");
    }
  }

  void find_shares() {
    std::map<std::string_view, const Shape*> shapes;
    for (const TensorInfo& tensor : whole_.catalog.tensors) {
      const Shape& parameter = *shapes.emplace(tensor.fqn, &tensor.shape).first->second;
      if (cuts_ && names_.contains(tensor.fqn)) {
        shares_.push_back(cuts_->shares_of(tensor, parameter));
      } else {
        shares_.emplace_back(tensor_ranks_, RankShare{tensor.shape, {}, true});
      }
    }
  }

  bool has(const ModelRank& rank, const std::string& fqn) const {
    return layers_ ? names_.contains(fqn) && layers_->has(rank.stage, fqn) : true;
  }

  RankTensors tensors_of(const ModelRank& rank) const {
    const Catalog& whole = whole_.catalog;
    RankTensors part{whole, {}};
    part.catalog.tensors.clear();
    part.catalog.world_size = whole.world_size / (tensor_ranks_ * stages());
    if (cuts_) part.catalog.client_state[kCutPatterns] = cuts_->info();
    std::set<std::string> kept;
    for (TensorIndex i = 0; i < whole.tensors.size(); ++i) {
      if (!has(rank, whole.tensors[i].fqn)) continue;
      const RankShare& share = shares_[i][rank.tensor_rank];
      TensorInfo tensor = whole.tensors[i];
      tensor.shape = share.shape;
      tensor.crc64.reset();
      tensor.stats.reset();
      kept.insert(tensor.fqn);
      part.catalog.tensors.push_back(std::move(tensor));
      part.origins.push_back({i, &share});
    }
    if (!layers_) return part;
    std::erase_if(part.catalog.aliases,
                  [&](const Alias& alias) { return !kept.contains(alias.target); });
    for (const Alias& alias : part.catalog.aliases) kept.insert(alias.fqn);
    keep_groups(part.catalog, kept, *layers_, rank.stage);
    return part;
  }

  void add_rank(std::uint32_t stage, std::uint32_t tensor_rank) {
    const ModelRank rank{stages(), tensor_ranks_, stage, tensor_rank,
                         layers_ ? &*layers_ : nullptr};
    const RankTensors part = tensors_of(rank);
    require_parameters(part.catalog, stage);
    const SavedRun run(part.catalog, rank);
    OutputDraft files = draft_regular(run);
    const std::size_t first = draft_.archives.size();
    const PlacementMap map(whole_.catalog, part);
    for (torch::Placement& placement : files.plan.placements) {
      placement.archive += first;
      map.add(placement, draft_.plan);
    }
    for (auto& constant : files.plan.constants) {
      constant.archive += first;
      draft_.plan.constants.push_back(std::move(constant));
    }
    std::ranges::move(files.archives, std::back_inserter(draft_.archives));
  }

  void require_parameters(const Catalog& catalog, std::uint32_t stage) const {
    const auto is_trained = [&](const SinkParameter& parameter) {
      const std::string& state = whole_.catalog.tensors[parameter.master].state;
      return catalog.find(parameter.fqn, state).has_value();
    };
    if (!layers_ || std::ranges::any_of(whole_.model.parameters, is_trained)) return;
    raise(ErrorCode::InvalidArgument,
          fmt::format("stage {} would have no trained parameter, and DeepSpeed's optimizers need "
                      "one",
                      stage),
          "divide the layers in another way: --pipeline-parts; nothing was written");
  }

  const SavedRun& whole_;
  const std::uint32_t tensor_ranks_;
  std::optional<RankCuts> cuts_;
  std::optional<StageLayers> layers_;
  std::set<std::string> names_;                 ///< of the module
  std::vector<std::vector<RankShare>> shares_;  ///< by tensor and tensor-parallel rank
  OutputDraft draft_;
};

}  // namespace
}  // namespace deepspeed_sink

std::unique_ptr<Sink> make_deepspeed_parallel_sink(Storage& storage, const Path& folder,
                                                   const std::string& tag, Catalog catalog,
                                                   const ParallelRanks& ranks,
                                                   const WorkSplit& share, SideFiles side_files,
                                                   bool moves_latest) {
  const deepspeed_sink::SavedRun run(catalog);
  if (deepspeed_sink::has_experts(run)) {
    raise(ErrorCode::Unsupported,
          "the checkpoint has experts, which are not written for stages or tensor-parallel ranks",
          "leave --tensor and --pipeline out");
  }
  deepspeed_sink::OutputDraft draft = deepspeed_sink::ParallelDraft(run, ranks).make();
  deepspeed_sink::add_notes(run, draft, catalog.stage > 0 || run.is_fused());
  return deepspeed_sink::make_folder_sink(storage, folder, tag, moves_latest ? "latest" : "",
                                          std::move(catalog), std::move(draft), share,
                                          std::move(side_files));
}

}  // namespace unishard::converters
