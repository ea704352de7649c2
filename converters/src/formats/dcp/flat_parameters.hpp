#pragma once
// FSDP1's LOCAL_STATE_DICT: the parameters of a unit, one after the other, in one vector
// "_flat_param". The files hold neither their names nor their shapes; the optimizer's states hold
// both, in the same order, when they are stored by name.
#include "formats/dcp/state_dict.hpp"

#include <string>

namespace unishard::converters::dcp {

bool is_flat_parameter(const TensorEntry& tensor);
/// Returns the parameter `fqn` of the model, which consists of elements `place` of the flat one.
/// Pre: the chunks of `flat` lie inside it.
TensorEntry part_of_flat(const TensorEntry& flat, const std::string& fqn, const Shape& shape,
                         ElementRange place, Items& items);
[[noreturn]] void refuse_flat_parameter(const TensorEntry& tensor, const std::string& where,
                                        const std::string& why);

/// Replaces every "_flat_param" by the parameters in it.
/// Throws: Unsupported, naming a flat parameter whose parameters are unknown or do not fill it.
void take_apart_flat_parameters(StateDict& state, const std::string& where);

}  // namespace unishard::converters::dcp
