#pragma once
// The groups of an optimizer's parameters, as a catalog holds them.
// Thread safety: pure functions.
#include "unishard/format/json.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters {

/// Returns the parameters that one of Catalog::groups lists under "params"; nullopt when it has no
/// such list.
std::optional<std::vector<std::string>> listed_parameters(const Json& group);

/// Returns N for "state.N", as a parameter is called of which only its number in the optimizer is
/// known; nullopt for every other name.
std::optional<std::int64_t> parameter_number(std::string_view fqn);

/// Returns a group's settings as torch's optimizers hold them: pairs and triples of numbers
/// or None (`betas`, Adafactor's `eps`) are tuples, which JSON does not have.
Json with_tuples(Json group);

}  // namespace unishard::converters
