#pragma once
// Compares the tensors in a checkpoint with those that an engine needs.
#include "unishard/format/catalog.hpp"

#include <string>

namespace unishard::trainer::detail {

/// Throws: Mismatch, naming `where` and listing every difference.
void require_match(const Catalog& saved, const Catalog& wanted, const std::string& where);

}  // namespace unishard::trainer::detail
