#pragma once
// Safetensors files that DCP wrote: each holds pieces of tensors, and records under
// DCP_SHARDING_INFO in `__metadata__` where each piece begins in its tensor.
#include "unishard/format/storage.hpp"

#include "containers/boxes.hpp"
#include "containers/safetensors_header.hpp"
#include "containers/tensor_view.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace unishard::converters::dcp {

struct SafetensorsPiece {
  std::string key;
  Box box;
  torch::TensorView view;
};

struct SafetensorsPieces {
  std::vector<SafetensorsPiece> pieces;
  bool says_where = false;  ///< false: an ordinary file with whole tensors
};

/// Returns the elements of an entry of a file whose header was read.
torch::TensorView view_of(const std::shared_ptr<const File>& file, std::uint64_t data_offset,
                          const safetensors::HeaderEntry& entry);

/// Decides by the first bytes.
bool looks_like_safetensors(const File& file);
/// Throws: Corrupt, naming the file and the tensor.
SafetensorsPieces read_pieces(const std::shared_ptr<const File>& file);

}  // namespace unishard::converters::dcp
