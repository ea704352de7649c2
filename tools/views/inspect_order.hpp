#pragma once
// Which tensors `inspect` shows, and in which order. Pure.
#include "views/inspect_view.hpp"

#include <vector>

namespace unishard::cli {

/// Indices into catalog.tensors. Largest first by bytes, elements and norm.
std::vector<std::size_t> shown_tensors(const Catalog& catalog, const InspectView& view);

double norm_of(const TensorInfo& tensor);

/// "[768, 2304]"
std::string shape_text(const Shape& shape);

/// "2026-11-21 14:30:00 UTC", or empty for 0.
std::string time_text(std::int64_t unix_seconds);

}  // namespace unishard::cli
