#pragma once
// FSDP1's LOCAL_STATE_DICT in files of ranks, with the shapes of another model: which of their
// tensors are parts of flat parameters, and which are pieces of parameters, whose elements these
// have as well (`use_orig_params`).
#include "formats/dcp/flat_places.hpp"
#include "formats/dcp/like_model.hpp"
#include "formats/dcp/state_dict.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace unishard::converters::dcp {

/// Returns whether the last part of a name is that of a flat parameter: "_flat_param", in older
/// versions of torch "flat_param", in fairscale "flat_param_0".
bool is_flat_name(std::string_view name);

/// A parameter of which each rank's file has a piece.
struct PiecedParameter {
  std::string name;                           ///< without the parts of wrappers
  std::map<std::uint64_t, FlatPiece> pieces;  ///< by rank
};

/// Not thread-safe.
class RankFlatFiles {
 public:
  /// Lifetime: `like` must outlive this object.
  explicit RankFlatFiles(const LikeModel& like) : like_(like) {}

  /// Looks at the model in the file of `rank`.
  void add_file(const torch::TorchFile& file, torch::Value model, std::uint64_t rank);
  /// Adds to `builder`, below `key`, the flat parameters that are plain vectors in the files, and
  /// tells it which tensors of the files are not to be added.
  /// Throws: Unsupported where the parts of a vector have several sizes, Mismatch for a piece of a
  /// parameter that the other model lacks.
  void take(const std::string& key, StateDictBuilder& builder);

  /// Names of all tensors but flat parameters, without the parts of wrappers, in the files' order.
  const std::vector<std::string>& names() const { return names_; }
  /// In the same order.
  const std::vector<PiecedParameter>& pieced() const { return pieced_; }
  /// Second names of pieced parameters.
  const std::vector<Alias>& ties() const { return ties_; }
  /// Names of flat parameters that were plain vectors, whose last elements may be none.
  bool is_filled(const std::string& flat) const { return vector_places_.contains(flat); }

 private:
  struct Vector {
    torch::TensorView view;
    std::uint64_t rank = 0;
  };
  struct Vectors {
    std::string name;
    std::vector<Vector> of_ranks;
  };
  struct Candidate {
    std::string file_name;
    std::map<std::uint64_t, torch::TensorView> views;  ///< by rank
  };

  void find_pieces(const std::string& key, StateDictBuilder& builder);
  FlatPiece piece_of(const torch::TensorView& view, std::uint64_t rank) const;

  const LikeModel& like_;
  std::uint64_t ranks_ = 0;
  std::unordered_map<std::string, std::size_t> vector_places_;
  std::vector<Vectors> vectors_;  // in the order of the files, as the optimizer numbers them
  std::map<std::uint64_t, std::vector<torch::TensorView>> parts_;  // of flat parameters, by rank
  std::vector<std::string> names_;
  std::unordered_set<std::string> known_names_;
  std::unordered_map<std::string, Candidate> candidates_;
  std::vector<PiecedParameter> pieced_;
  std::vector<Alias> ties_;
};

}  // namespace unishard::converters::dcp
