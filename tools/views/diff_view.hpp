#pragma once
// The report of `unishard diff` as text or JSON. tools/README.md has the JSON schema.
// Thread safety: pure functions.
#include "unishard/format/json.hpp"

#include "views/styled_text.hpp"
#include "workflows/diff.hpp"

namespace unishard::cli {

StyledText diff_text(const tools::DiffReport& report);
Json diff_json(const tools::DiffReport& report);

}  // namespace unishard::cli
