#pragma once
#include "unishard/converters/source.hpp"

#include "formats/dcp/state_dict.hpp"

#include <memory>
#include <string>

namespace unishard::converters::dcp {

/// Returns a source of the checkpoint that a state dict describes. `format` is its name in
/// registry.hpp, `where` the path that messages name.
/// Throws: what arrange() throws.
std::unique_ptr<Source> make_state_dict_source(std::string format, StateDict state,
                                               const std::string& where);

}  // namespace unishard::converters::dcp
