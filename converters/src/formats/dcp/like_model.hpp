#pragma once
// A model that the user names (--like) because its tensors have the names and shapes of a
// checkpoint whose own files lack them. None of its values is used.
#include "unishard/converters/source.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace unishard::converters::dcp {

struct LikeTensor {
  std::string name;
  Shape shape;
  bool may_be_flat = true;  ///< a floating type, which all parameters of FSDP1 have
};

struct LikeModel {
  std::string where;                ///< the path that messages name
  std::vector<LikeTensor> tensors;  ///< in the order of the files
  std::unordered_map<std::string, std::size_t> places;
  std::vector<Alias> aliases;  ///< second names of tied parameters
  /// Why the order of `tensors` need not be that of the module; empty: it is the module's.
  std::string why_unordered;

  /// Returns null for a name that the model does not have.
  const LikeTensor* find(std::string_view name) const;
};

/// Returns the weights and buffers of a source. Its order is taken for the module's where it is
/// that of one torch.save file, names of a module follow each other, those of its own tensors come
/// before those of inner modules, and the names are not sorted.
/// Throws: InvalidArgument when it holds no model.
LikeModel like_model(const Source& source);

}  // namespace unishard::converters::dcp
