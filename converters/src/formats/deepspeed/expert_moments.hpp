#pragma once
// Moments of experts that are those of experts of another rank.
#include "formats/deepspeed/parameter_table.hpp"

namespace unishard::converters::deepspeed {

/// Notes moments of experts that begin with the values of another expert's, which are not one value
/// many times: nothing else shows that a rank's states were saved again in another's place. Some
/// moments alone may be equal by chance; a quarter of them is not.
void note_equal_experts(const ParameterTable& parameters, Notes& notes);

}  // namespace unishard::converters::deepspeed
