#pragma once
// Stage 0 of a pipeline: whether the layers have the weights of all optimizer states, which have no
// names there, and no others.
#include "unishard/format/tensor_info.hpp"

#include "formats/deepspeed/module_files.hpp"

#include <cstddef>
#include <vector>

namespace unishard::converters::deepspeed {

/// The beginning of one parameter's state.
struct UnnamedState {
  Shape shape;
  std::vector<std::byte> first;  ///< bytes of its first elements
};

struct StateBalance {
  std::size_t absent = 0;     ///< parameters with states that no layer has
  std::size_t further = 0;    ///< parameters of layers that no state has the shape of
  std::vector<Shape> copies;  ///< parameters of layers that are a tied module's second file
};

/// Compares the states with the parameters' shapes. A tied module has states on each of its stages,
/// in front of those of the layers, and one of them has the same values there: it counts once.
/// `repeated` are the shapes of the layers' parameters that have the values of an earlier layer's:
/// as many as there are tied states, or where there is one stage, as there are parameters without
/// states, are copies.
StateBalance balance_states(const std::vector<std::vector<UnnamedState>>& stages,
                            const std::vector<std::vector<Shape>>& layers,
                            const std::vector<Shape>& repeated);

}  // namespace unishard::converters::deepspeed
