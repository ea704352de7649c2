#pragma once
#include "config/flat_config.hpp"

namespace unishard::trainer::detail {

/// Gives every "auto" a value, or leaves the key out where "auto" means the default. Sets the
/// origin of what it resolves, and adds one line with the values that come from neither the file
/// nor a flag.
void resolve_automatic(FlatConfig& flat, const ConfigInputs& inputs,
                       std::map<std::string, Origin>& origins, std::vector<std::string>& notes);

}  // namespace unishard::trainer::detail
