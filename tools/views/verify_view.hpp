#pragma once
// The report of `unishard verify` as text or JSON. tools/README.md has the JSON schema.
// Thread safety: pure functions.
#include "unishard/format/json.hpp"

#include "views/styled_text.hpp"
#include "workflows/verify/verify.hpp"

namespace unishard::cli {

StyledText verify_text(const tools::VerifyReport& report);
Json verify_json(const tools::VerifyReport& report);

}  // namespace unishard::cli
