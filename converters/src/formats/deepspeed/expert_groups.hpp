#pragma once
// The place of the experts in a run's optimizer files (stages 1 and 2). The ranks of a group of
// experts are divided into N expert ranks; those of one expert rank share a flat vector, in which
// the experts have local numbers.
#include "formats/deepspeed/expert_files.hpp"
#include "formats/deepspeed/optimizer_file.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters::deepspeed {

/// Which experts a data-parallel rank holds.
struct ExpertRanks {
  std::uint64_t world_size = 1;
  bool is_data_first = false;  ///< use_data_before_expert_parallelism

  /// Returns the expert rank of `rank`, of `size` expert ranks.
  std::uint64_t of(std::uint64_t rank, std::uint64_t size) const;
  /// Returns the number of `rank` among the ranks of the same expert rank.
  std::uint64_t place(std::uint64_t rank, std::uint64_t size) const;
};

/// Returns N of a parameter group called "ep_size_N" that holds experts; 0 for another group.
/// Throws: Corrupt for experts in a group of another name.
std::uint64_t expert_ranks_of(const Json& settings, std::string_view file);

class ExpertGroups {
 public:
  /// `shapes` are param_shapes, with the local numbers of rank 0's order of the groups.
  /// Lifetime: `experts` and `first` must outlive this object.
  /// Throws: Corrupt when the files contradict each other.
  ExpertGroups(const ExpertFiles& experts, const ShapeGroups& shapes, const OptimizerFile& first,
               const ExpertRanks& ranks);

  /// The flat vectors, with global numbers: each group without experts is one, each other group has
  /// one for every expert rank.
  const ShapeGroups& vectors() const { return vectors_; }
  /// Unused elements in them, as OptimizerFile::gaps.
  const std::vector<std::vector<std::uint64_t>>& gaps() const { return gaps_; }
  /// The parameters of each group, in the model's order.
  ShapeGroups parameters() const;

  /// Returns `file` with its groups in the order of `first`: processes order the groups of experts
  /// by hashes of their names.
  OptimizerFile in_first_order(OptimizerFile file) const;
  /// Returns such a file of `rank` with one group per vector; those of other ranks are empty.
  OptimizerFile by_vector(const OptimizerFile& file, std::uint32_t rank) const;
  /// Returns the number of the partition that `rank` has of each vector; nullopt for none.
  std::vector<std::optional<std::uint64_t>> places(std::uint32_t rank) const;

 private:
  struct Vector {
    std::size_t group = 0;
    std::uint64_t expert_rank = 0, expert_ranks = 0;  ///< 0 of 0: a group without experts
  };
  void add_group(std::size_t group, const std::vector<NamedShape>& shapes);
  std::string global_name(const std::string& local, const Vector& vector) const;
  void check_count(std::size_t group) const;
  bool has(const Vector& vector, std::uint32_t rank) const;

  const ExpertFiles& experts_;
  const OptimizerFile& first_;
  ExpertRanks ranks_;
  std::vector<std::uint64_t> sizes_;  ///< expert ranks of each group; 0: no experts
  std::vector<Vector> of_;            ///< what each vector is
  ShapeGroups vectors_;
  std::vector<std::vector<std::uint64_t>> gaps_;
};

}  // namespace unishard::converters::deepspeed
