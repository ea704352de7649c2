#pragma once
// Bind checked values to the fields of Config, and check what concerns several keys at once.
#include "unishard/trainer/config.hpp"

#include "config/checked_config.hpp"

namespace unishard::trainer::detail {

void read_optimizer(const CheckedConfig& from, Config& config);
/// Returns DeepSpeed's default of a parameter for one type of optimizer, where it is not that of
/// the table.
std::optional<Json> default_of_type(std::string_view type, std::string_view parameter);
void read_schedule(const CheckedConfig& from, Config& config);
void read_zero(const CheckedConfig& from, Config& config);
void read_offload(const CheckedConfig& from, Config& config);
void read_recomputation(const CheckedConfig& from, Config& config);
void read_monitors(const CheckedConfig& from, Config& config);
void read_profilers(const CheckedConfig& from, Config& config);
/// Checks the settings of dynamic scaling only where they are used, as DeepSpeed does.
void read_precision(const CheckedConfig& from, Config& config);

/// Notes the keys of `section` in the file that `type` does not use.
void note_unused(const CheckedConfig& from, std::string_view section, std::string_view type,
                 std::string_view what, std::vector<std::string>& notes);

std::string lower_case(std::string_view text);

}  // namespace unishard::trainer::detail
