#pragma once
// All tensors of a checkpoint in about 80 bytes each.
// Thread safety: pure functions.
#include "unishard/format/catalog.hpp"
#include "unishard/format/json.hpp"

#include "workflows/report/comparison.hpp"

namespace unishard::cli {

/// Returns dictionaries (`patterns`, `states`, `dtypes`, `shapes`), `names` as [pattern,
/// numbers...] of split_name(), and one list per column with an entry per tensor. NaN and infinite
/// elements are listed only where there are some. `comparison` may be null.
Json tensor_columns(const Catalog& catalog, const tools::DigestComparison* comparison);

/// Returns `value` rounded to five digits, which JSON then holds in few characters; null for NaN
/// and infinity.
Json few_digits(double value);

}  // namespace unishard::cli
