#pragma once
// What the names of folders with checkpoints say.
// Thread safety: pure functions.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

namespace unishard::converters {

/// Returns 500 for "checkpoint-500" (a Trainer) and for "checkpoint_500" (accelerate).
std::optional<std::uint64_t> checkpoint_number(std::string_view name);

/// Returns the text before the number at the end, then the number, so that "checkpoint-9" comes
/// before "checkpoint-10".
std::tuple<std::string_view, std::size_t, std::string_view> natural_order(std::string_view name);

/// Returns the step that a name tells. Numbers behind other words count saves or epochs:
/// "checkpoint_3" of accelerate is its third.
std::optional<std::int64_t> step_in_name(std::string_view name);

}  // namespace unishard::converters
