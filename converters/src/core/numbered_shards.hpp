#pragma once
// Names such as "model-00002-of-00003.safetensors", by which the files of one model say how many
// they are.
#include <string>
#include <vector>

namespace unishard::converters {

/// Returns a sentence about a file that `names` lacks although another of them counts it; empty
/// when none is missing. Names without numbers say nothing.
std::string missing_shard(const std::vector<std::string>& names);

}  // namespace unishard::converters
