#pragma once
// Settings that torch.optim.AdamW (torch 2.15) expects in every parameter group of a checkpoint,
// with their defaults. Older versions omit settings that they do not know.
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
