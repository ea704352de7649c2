#pragma once
#include "unishard/format/json.hpp"

#include <string_view>

namespace unishard::trainer::detail {

/// Returns true when a feature of DeepSpeed is switched off by the value of its key: false, 0,
/// null, "none", an empty value, an object that is not enabled or whose parts are all off.
bool is_switched_off(std::string_view feature, const Json& value);

}  // namespace unishard::trainer::detail
