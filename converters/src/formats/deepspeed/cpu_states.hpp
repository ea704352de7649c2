#pragma once
// What DeepSpeed's Adagrad and Lion of the CPU (offload_optimizer) call their states. Source:
// deepspeed/ops/adagrad/cpu_adagrad.py and deepspeed/ops/lion/cpu_lion.py of 0.19.
#include "unishard/format/json.hpp"

#include "formats/deepspeed/model_file.hpp"
#include "formats/deepspeed/parameter_table.hpp"

#include <string>
#include <vector>

namespace unishard::converters::deepspeed {

/// State of Adagrad, as torch calls it.
inline constexpr const char* kAdagradSum = "sum";

/// Returns true for the settings of a group of Lion: betas and no eps.
bool is_lion(const Json& settings);

/// Gives the states torch's names: the sum of Adagrad, which the CPU's calls exp_avg_sq, and no
/// exp_avg_sq of Lion, which the CPU's has and never uses. `groups` are those of the catalog.
/// Throws: Corrupt for a storage that cannot be read.
void name_cpu_states(ParameterTable& parameters, const Json& groups, Notes& notes);

/// Returns the name that a state of a group with these settings and states has in DeepSpeed's files
/// of stages 1 to 3. There, DeepSpeed trains several groups with its Adagrad of the CPU only.
std::string cpu_state_name(const Json& settings, const std::vector<std::string>& states,
                           const std::string& name);

}  // namespace unishard::converters::deepspeed
