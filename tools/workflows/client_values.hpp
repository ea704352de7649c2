#pragma once
// Compares what the users of two runs added to their checkpoints.
#include "unishard/format/json.hpp"

#include "workflows/diff.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::tools {

struct ClientComparison {
  std::uint64_t tensors = 0;  ///< that both sides have
  /// Tensors and arrays of numpy that differ, or that one side lacks.
  std::vector<TensorDiff> differences, within_tolerance;
  std::vector<std::string> information;  ///< one line for each other value
};

/// Compares two client states; null stands for none. What refers to tensors of the catalogs
/// (kExtraState) is not followed.
ClientComparison compare_client_values(const Json& a, const Json& b,
                                       const std::optional<double>& tolerance);

/// Returns a note about the tensors that a client state holds by itself; nullopt when there are
/// none.
std::optional<std::string> note_client_tensors(const Json& client_state);

}  // namespace unishard::tools
