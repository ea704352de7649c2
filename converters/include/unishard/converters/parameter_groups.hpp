#pragma once
// The groups of an optimizer's parameters, as a catalog holds them.
// Thread safety: pure functions.
#include "unishard/format/json.hpp"

#include <optional>
#include <string>
#include <vector>

namespace unishard::converters {

/// Returns the parameters that one of Catalog::groups lists under "params"; nullopt when it has no
/// such list.
std::optional<std::vector<std::string>> listed_parameters(const Json& group);

/// Returns a group's settings as torch's optimizers hold them: pairs and triples of numbers
/// or None (`betas`, Adafactor's `eps`) are tuples, which JSON does not have.
Json with_tuples(Json group);

}  // namespace unishard::converters
