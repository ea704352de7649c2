#pragma once
// Catalogs as JSON, as unishard_c.h describes them.
#include "unishard/format/catalog.hpp"

namespace unishard::c_interface {

/// Returns "step", "world_size", "stage", "tensors", "aliases" and the sections of SPEC.md.
Json catalog_json(const Catalog& catalog);

/// Reads what catalog_json() returns; digests, statistics and unknown keys are ignored.
/// Throws: InvalidArgument when the text is no catalog; Unsupported for an unknown element type.
Catalog catalog_from(const char* text);

}  // namespace unishard::c_interface
