#pragma once
// The settings that torch.optim.AdamW (torch 2.15) expects in every parameter group of a
// checkpoint, with its defaults. Older versions leave out what they do not know.
#include "unishard/format/json.hpp"

namespace unishard::converters {

/// Returns the settings in torch's order.
inline Json adamw_defaults() {
  return {{"lr", 1e-3},
          {"betas", Json::array({0.9, 0.999})},
          {"eps", 1e-8},
          {"weight_decay", 1e-2},
          {"amsgrad", false},
          {"maximize", false},
          {"foreach", nullptr},
          {"capturable", false},
          {"differentiable", false},
          {"fused", nullptr},
          {"decoupled_weight_decay", true}};
}

}  // namespace unishard::converters
