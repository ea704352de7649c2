#pragma once
// A state dict of torch.distributed.checkpoint that is about to be saved in UniShard's format.
#include "unishard/converters/loss.hpp"
#include "unishard/format/catalog.hpp"
#include "unishard/format/json.hpp"

#include <string>
#include <vector>

namespace unishard::converters {

struct PlannedStateDict {
  /// What the reader of a DCP folder with this state dict would give. `producer` is an object whose
  /// member "state_dict" describes the keys, as dcp::describe_folder() does.
  Catalog catalog;
  std::vector<std::string> keys;  ///< for each tensor of the catalog, its key in the state dict
  Losses losses = {};             ///< as those of Source
  std::vector<std::string> notes, remarks;  ///< as those of Source
};

/// Arranges the keys of a state dict by the rules of MAPPING.md. `described` is an object:
/// "world_size"; "tensors" lists {"key", "path", "dtype", "shape", "chunks" (number of pieces that
/// are not empty), "bytes" (of a tensor with one element, in hexadecimal; zeros when absent),
/// "equal" (tensors with the same text here have equal elements; may be absent)}; "objects" lists
/// {"key", "path", "value"} or {"key", "path", "pickle": what torch.save makes, in hexadecimal}. A
/// path lists texts and positions; it is null where the planner records none.
/// Thread safety: a pure function.
/// Throws: InvalidArgument when `described` is something else; Unsupported for an unknown dtype;
/// what parsing a torch.save archive throws.
PlannedStateDict plan_state_dict(const Json& described);

}  // namespace unishard::converters
