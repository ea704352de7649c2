#pragma once
// A rotary embedding in the config.json of transformers: rope_theta and rope_scaling (version 4),
// or rope_parameters (version 5). Thread safety: pure functions.
#include "unishard/format/json.hpp"
#include "unishard/trainer/rotary_config.hpp"

#include "models/hugging_face_object.hpp"

namespace unishard::trainer::detail {

/// Throws: InvalidArgument, naming the key and its value, for variants that are not supported.
RotaryConfig rotary_from_hugging_face(const HuggingFaceObject& model, std::int64_t positions,
                                      std::int64_t head_width);
/// Adds rope_theta and rope_scaling, which both versions read.
void rotary_to_hugging_face(const RotaryConfig& rotary, Json& model);

}  // namespace unishard::trainer::detail
