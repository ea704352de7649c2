#pragma once
// Sizes that the tensors of one model share, such as its width: a shape that all files of a
// checkpoint have alike is seen to be wrong by the other tensors alone, or by what a file says of
// the model.
#include "unishard/format/tensor_info.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace unishard::converters {

class SharedSizes {
 public:
  /// Sets the size that dimensions of this name must have, which `key` of a file tells. Does
  /// nothing where it is not known.
  void tell(const std::string& name, std::optional<std::uint64_t> size, std::string_view key);

  /// Returns a sentence where the whole tensor has another number of dimensions than `names`, or
  /// another size than was told, or than an earlier tensor has in a dimension of the same name.
  /// Else keeps its sizes for the tensors that follow.
  std::optional<std::string> compare(const TensorInfo& tensor, std::span<const std::string> names);

 private:
  struct Known {
    std::uint64_t size = 0;
    std::string words;  ///< who has it
  };
  std::map<std::string, Known> known_;
};

}  // namespace unishard::converters
