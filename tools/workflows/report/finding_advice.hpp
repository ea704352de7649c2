#pragma once
// How bad a finding of verify() is, and what to do about it.
// Thread safety: pure functions.
#include "workflows/report/outliers.hpp"
#include "workflows/verify/verify.hpp"

#include <string>

namespace unishard::tools {

/// Returns Error when elements are lost or cannot be trusted, else Warning.
Level level_of(const Finding& finding);
/// Returns the finding's hint, or general advice for its code.
std::string advice_for(const Finding& finding);

}  // namespace unishard::tools
