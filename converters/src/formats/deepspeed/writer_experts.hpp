#pragma once
// The experts of a run in DeepSpeed's files: each has a file of its own, and the optimizer's groups
// of experts are divided among expert ranks.
#include "formats/deepspeed/expert_groups.hpp"
#include "formats/deepspeed/writer_model.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::converters::deepspeed_sink {

/// What the ranks of a run hold of the experts.
class ExpertShares {
 public:
  /// Returns nullopt for a run whose files have no place for experts: there are none, their groups
  /// are not called "ep_size_N" (another program trained them), some are frozen, or the stage is 3.
  /// Lifetime: `catalog` and `model` must outlive the result.
  /// Throws: InvalidArgument when the expert ranks do not divide the ranks or the experts of a
  /// layer; Mismatch for a layer that lacks an expert; Unsupported at stage 0 with groups of
  /// several sizes.
  static std::optional<ExpertShares> of(const Catalog& catalog, const SinkModel& model);

  const std::vector<deepspeed::ExpertLayer>& layers() const { return layers_; }
  /// Returns N of a group: 1 for a group without experts.
  std::uint32_t size(std::size_t group) const { return sizes_[group]; }
  /// Returns the largest N.
  std::uint32_t largest() const;
  /// Returns which of the N parts of a group `rank` holds, and the number of `rank` among those
  /// that hold the same.
  std::uint32_t share(std::size_t group, std::uint32_t rank) const;
  std::uint32_t place(std::size_t group, std::uint32_t rank) const;
  /// Returns the parameters of a part, in the group's order.
  std::vector<std::size_t> members(std::size_t group, std::uint32_t share) const;
  /// Returns the name of a parameter on the ranks that hold it: they number their experts from 0.
  std::string local_name(std::size_t group, std::size_t parameter) const;

 private:
  ExpertShares(const Catalog& catalog, const SinkModel& model);
  /// The number of an expert and the experts of its layer; none for another parameter.
  struct Place {
    std::uint64_t number = 0, of = 0;
  };
  bool find_sizes();
  void find_layers();
  void find_places();
  void check() const;

  const SinkModel& model_;
  deepspeed::ExpertRanks ranks_;
  std::uint32_t stage_ = 0;
  std::vector<Place> places_;                   ///< of each parameter
  std::vector<std::uint32_t> sizes_;            ///< N of each group
  std::vector<deepspeed::ExpertLayer> layers_;  ///< in model order
};

}  // namespace unishard::converters::deepspeed_sink
