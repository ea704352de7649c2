#pragma once
// Doubts about states of stage 3 in files of their own (offload to NVMe). Those have no checksums,
// and a copy that stopped, or a disk that was full, leaves zeros in a file of the full size.
#include "unishard/format/tensor_info.hpp"

#include "containers/tensor_view.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::converters::deepspeed {

/// One state of a sub-group of one rank.
struct SwappedState {
  std::string file, name;
  std::size_t group = 0;
  std::uint32_t rank = 0;
  torch::TensorView view, whole_file;  ///< padding may follow in the file
  std::vector<ElementRange>
      parameters;  ///< their parts in it, ascending, none empty; the rest pads
};

/// Returns a line for each kind of doubt about the states of an optimizer that has made steps:
/// files of zeros whose other states are not zero, where a healthy run has both or none; masters,
/// or all moments, of zeros only; zeros that begin inside of a parameter and go on to the end.
/// Moments that are zero together are those of parameters without gradients, and not doubted.
std::vector<std::string> doubts_about_zeros(const std::vector<SwappedState>& states);

/// Returns a line about files of squares (exp_avg_sq) that hold negative numbers among the first of
/// a parameter: another state's content is in their place. nullopt when there are none.
std::optional<std::string> doubt_about_squares(const std::vector<SwappedState>& states);

/// Returns a line about files with the bytes of another state's, nullopt when there are none. Files
/// of one value may be equal, and so may all moments of two sub-groups: parameters with the same
/// gradients have them.
std::optional<std::string> doubt_about_copies(const std::vector<SwappedState>& states);

}  // namespace unishard::converters::deepspeed
