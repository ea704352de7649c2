#pragma once
// How whole tensors are cut for the tensor-parallel ranks of a run, by the patterns in a catalog's
// client state. It is the inverse of what CutRules describes for a reader.
#include "unishard/converters/parallel_ranks.hpp"
#include "unishard/format/box.hpp"
#include "unishard/format/catalog.hpp"

#include "formats/deepspeed/universal_cut.hpp"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace unishard::converters::deepspeed_sink {

/// What one tensor-parallel rank has of a tensor.
struct RankShare {
  Shape shape;                       ///< of the rank's tensor
  std::vector<unishard::Box> boxes;  ///< of the whole tensor, one behind the other in the rank's
  bool is_whole = false;             ///< the rank's tensor is the whole one
};

/// Not thread-safe.
class RankCuts {
 public:
  /// Reads the patterns of `catalog`.
  /// Pre: ranks.tensor has a value. For one rank, only the vocabulary changes.
  /// Throws: Unsupported when there are none, or such that are not understood.
  RankCuts(const Catalog& catalog, const ParallelRanks& ranks);

  /// Returns each rank's share of a tensor of the catalog.
  /// Throws: Unsupported, naming the tensor, when it cannot be cut into equal parts as its rule
  /// says, or its rule does not fit it.
  std::vector<RankShare> shares_of(const TensorInfo& tensor, const Shape& parameter);

  /// Returns what the files of the run have as universal_checkpoint_info.
  /// Pre: shares_of() was called for every tensor.
  Json info() const;
  /// Returns lines about the rows that vocabularies get, and about parameters without a rule.
  std::vector<std::string> remarks() const;

 private:
  /// Sizes of sub-tensors one behind the other along a dimension, each of which is cut evenly.
  struct Cut {
    std::size_t dimension = 0;
    std::vector<std::uint64_t> sizes;  ///< with rows of padding; empty: all ranks have it whole
  };
  Cut cut_of(const TensorInfo& tensor);
  std::vector<std::uint64_t> sub_parameters_of(const TensorInfo& tensor,
                                               const deepspeed::SubParameterRule& rule);
  std::uint64_t padding_of(const TensorInfo& tensor);
  RankShare share_of(const TensorInfo& tensor, const Cut& cut, std::uint32_t rank) const;

  const std::uint32_t ranks_;
  const std::uint32_t multiple_;
  Json info_;
  deepspeed::UniversalCuts rules_;
  std::map<std::string, std::vector<std::uint64_t>> sizes_;  ///< of sub-parameters, by pattern
  std::map<std::string, std::uint64_t> padded_;              ///< rows, by parameter
  std::set<std::string> without_rule_;
};

}  // namespace unishard::converters::deepspeed_sink
