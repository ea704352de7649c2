#pragma once
// The rows of `inspect`: one per parameter with all its states, and one for the numbered layers
// that agree. Thread safety: pure functions.
#include "views/inspect_view.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace unishard::cli {

struct InspectRow {
  std::string name;    ///< for example "h.{0..47}.attn.weight"
  std::string shape;   ///< of each tensor
  std::string dtypes;  ///< for example "float32, bfloat16"
  std::string states;  ///< in the order of the types: "fp32 exp_avg, weights (derived)"
  std::int32_t group = -1;
  bool frozen = false;
  std::uint64_t bytes = 0;     ///< stored bytes of all its tensors
  std::uint64_t elements = 0;  ///< elements of its parameters, each counted once
};

/// Returns the rows of the tensors that `view` selects, in its order; sorting by bytes or elements
/// compares the sums of the rows. States of another shape than the parameter have a row of their
/// own. A name in braces stands for exactly the parameters that it spells out.
std::vector<InspectRow> inspect_rows(const Catalog& catalog, const InspectView& view);

}  // namespace unishard::cli
