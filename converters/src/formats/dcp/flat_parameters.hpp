#pragma once
// FSDP1's LOCAL_STATE_DICT: the parameters of a unit one after the other in one vector
// "_flat_param". The files hold neither names nor shapes of them; the optimizer's states, where
// they are kept by name, do, in the same order.
#include "formats/dcp/state_dict.hpp"

#include <string>

namespace unishard::converters::dcp {

bool is_flat_parameter(const TensorEntry& tensor);
[[noreturn]] void refuse_flat_parameter(const TensorEntry& tensor, const std::string& where,
                                        const std::string& why);

/// Replaces every "_flat_param" by the parameters in it. Throws Unsupported naming one whose
/// parameters are not known, or are not all of it.
void take_apart_flat_parameters(StateDict& state, const std::string& where);

}  // namespace unishard::converters::dcp
