#pragma once
// Selects and sorts the tensors that `inspect` shows.
// Thread safety: pure functions.
#include "views/inspect_view.hpp"

#include <vector>

namespace unishard::cli {

/// Returns indices into catalog.tensors. A tied tensor is shown for its second names as well.
/// Sorting by bytes, elements or norm puts the largest first.
std::vector<std::size_t> shown_tensors(const Catalog& catalog, const InspectView& view);

double norm_of(const TensorInfo& tensor);

/// Returns, for example, "[768, 2304]".
std::string shape_text(const Shape& shape);

/// Returns, for example, "2026-11-21 14:30:00 UTC"; empty for 0.
std::string time_text(std::int64_t unix_seconds);

}  // namespace unishard::cli
