#pragma once
// The fp32 masters of a state dict against its weights, which are the masters rounded: nothing else
// shows that a file of one of them is another's.
#include "formats/dcp/state_dict.hpp"
#include "formats/dcp/state_dict_to_catalog.hpp"

#include <optional>
#include <string>

namespace unishard::converters::dcp {

/// Compares both ends of pieces of each master with the weights. Returns a line
/// that names masters which do not round to them; nullopt where all do. What cannot be read is not
/// compared.
std::optional<std::string> find_foreign_masters(const StateDict& state,
                                                const Arrangement& arranged);

}  // namespace unishard::converters::dcp
